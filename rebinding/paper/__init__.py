"""What the paper says: its numbers with their places, its circuits, and what a claim of it is."""
