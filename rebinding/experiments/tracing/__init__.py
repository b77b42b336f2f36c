"""Section 3: the residual interchange map, cell by cell, and the readout diagnostic."""
