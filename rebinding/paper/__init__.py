"""What the paper says: its numbers with their places, its circuits, its sentences as rows."""
