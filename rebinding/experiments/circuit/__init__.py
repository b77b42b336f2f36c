"""Section 4.1: finding a circuit by path patching, pruning it, and holding every other head at its mean."""
