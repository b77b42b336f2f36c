"""The unedited model: its answers, whether a replay gives the same logits, and how much rounding changes them."""
