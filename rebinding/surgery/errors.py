"""What a surgeon raises."""

from __future__ import annotations


class SurgeryError(ValueError):
    """An edit or a read that cannot mean what it says."""


class NothingEdited(SurgeryError):
    """The edits of a row change nothing that is read: the result would be the clean run under another name."""
