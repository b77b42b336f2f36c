"""What a terminal is shown of words that are not ours: names, and what libraries say of a stranger's files."""

from __future__ import annotations


def readable(text: str) -> str:
    """The text with everything that cannot be seen, and could steer a terminal, spelt out; line ends stay."""
    return "".join(one if one.isprintable() or one == "\n" else ascii(one)[1:-1] for one in text)
