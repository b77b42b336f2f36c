"""The circuit for swaps in questions about unswapped boxes."""
