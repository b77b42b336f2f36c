"""Recompute verdicts by hand: full forwards of the library's eager model, and lines of numpy."""
