"""What a mechanism is written in: features, heads and their wiring, the template of tokens, positions as phases."""
