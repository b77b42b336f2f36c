"""The content of the paper: its numbers with their sources, its circuits, its procedures and its claims."""
