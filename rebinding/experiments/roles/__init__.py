"""Section 4.2: groups of heads get the attention of a counterfactual prompt."""
