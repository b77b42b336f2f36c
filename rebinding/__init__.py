"""An executable paper: how language models rebind entities, every claim a test."""

__version__ = "0.2.0.dev0"
