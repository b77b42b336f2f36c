"""The paper, one test per claim, one file per section. A test returns the verdict of its claim on a model."""
