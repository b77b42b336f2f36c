"""Discovery that is not told where to look: every head at every token as a sender, backwards from the logits."""
