"""Section 4.1: path patching, and the circuit that it finds."""
