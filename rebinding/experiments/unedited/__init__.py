"""The unedited model: what it answers, whether a replay gives the same, and how much rounding moves its logits."""
