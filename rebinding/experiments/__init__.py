"""One file per section of the paper; each maps a surgeon, encoded prompts and settings to evidence."""
