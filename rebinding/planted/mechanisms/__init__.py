"""The four mechanisms, each a wiring."""
