"""Verdicts computed again by hand: one full forward of the library's eager model after another, and lines of numpy."""
