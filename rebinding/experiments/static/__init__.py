"""The circuit for swaps where nothing was swapped."""
