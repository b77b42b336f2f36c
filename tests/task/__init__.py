"""Tests of the world of boxes: stories, texts, tokens, roles, designs."""
