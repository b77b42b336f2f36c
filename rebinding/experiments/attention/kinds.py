"""The kind of evidence, with its columns."""

from __future__ import annotations

from rebinding.evidence import Kind

LOOKS = Kind("attention", ("prompt", "layer", "head", "token", "attention", "uniform"))
"""A head's attention on a token of a prompt, by the name of its role. `uniform` is what the token would get from a head
that looks alike at every token that it can see."""
