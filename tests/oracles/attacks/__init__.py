"""Data on which a rule that looks sound decides wrongly: the rate before a mend and after it."""
