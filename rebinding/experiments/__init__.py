"""One package per section of the paper: measure (surgeon, prompts, settings to evidence) and summarise."""
