"""Simulated evidence, in worlds in which the paper is right or its rival is, and the rates of verdicts on it."""
