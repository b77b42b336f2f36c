"""The numbers that a model is held against: the paper's own, or those that a plant's construction promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rebinding.paper.numbers import PublishedNumber, numbers


def printed(about: Mapping[str, Any]) -> Mapping[str, float]:
    """By quantity, such as `binding.q.dR`; empty for a model about which nothing is printed."""
    return about.get("printed") or {name: number.value for name, number in _of_paper(about.get("alias")).items()}


def written(about: Mapping[str, Any]) -> Mapping[str, str]:
    """The same as text, with the decimals that were printed."""
    planted = {quantity: f"{value:.2f}" for quantity, value in about.get("printed", {}).items()}
    return planted or quoted(about.get("alias"))


def quoted(alias: str | None) -> Mapping[str, str]:
    """What stands in the paper, by quantity."""
    return {quantity: number.printed.replace("-", "−") for quantity, number in _of_paper(alias).items()}


def _of_paper(alias: str | None) -> Mapping[str, PublishedNumber]:
    """The numbers that the paper prints for one of its models."""
    named = ((name.partition("@"), number) for name, number in numbers().items())
    return {quantity: number for (quantity, _, model), number in named if alias and model == alias}
