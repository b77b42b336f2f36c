"""Runs without a device: the experiments' own code on tensors that say they are somewhere else, or hold no numbers."""
