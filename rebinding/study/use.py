"""What a sentence has asked for."""

from __future__ import annotations

from dataclasses import dataclass

from rebinding.evidence import Request


@dataclass(frozen=True)
class Use:
    """A piece of evidence that a sentence rests on: what was asked, and where the circuit in it comes from.

    What a gate looked at is no ground of the sentence.
    """

    request: Request
    circuit: str | None
    ground: bool
