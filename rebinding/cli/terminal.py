"""Safe printing of foreign text: names, and messages of libraries about files."""

from __future__ import annotations


def readable(text: str) -> str:
    """The text with unprintable characters, which could steer a terminal, escaped; line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
