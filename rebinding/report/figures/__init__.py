"""Figures of the report: a file for each part of the paper, drawn from evidence."""
