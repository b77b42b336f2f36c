"""Position-free discovery: every head at every token as a sender, backwards from the logits."""
