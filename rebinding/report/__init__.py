"""The report of a run: its files, its page, the figures of the page, and the comparison of two reports."""
