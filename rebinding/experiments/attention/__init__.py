"""What heads look at, in prompts as they are."""
