"""The numbers that a model is held against: the paper's own, or those that a plant's construction promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rebinding.paper.numbers import numbers


def printed(about: Mapping[str, Any]) -> Mapping[str, float]:
    """By quantity, such as `binding.q.dR`; empty for a model about which nothing is printed."""
    planted: Mapping[str, float] = about.get("printed", {})
    if planted:
        return planted
    alias = about.get("alias")
    return of_paper(alias) if alias else {}


def written(about: Mapping[str, Any]) -> Mapping[str, str]:
    """The same as text, with the decimals that were printed."""
    if about.get("printed"):
        return {quantity: f"{value:.2f}" for quantity, value in about["printed"].items()}
    return quoted(about["alias"]) if about.get("alias") else {}


def quoted(alias: str) -> Mapping[str, str]:
    """What stands in the paper, by quantity."""
    named = ((name.partition("@"), number.printed) for name, number in numbers().items())
    return {quantity: text.replace("-", "−") for (quantity, _, model), text in named if model == alias}


def of_paper(alias: str) -> Mapping[str, float]:
    """The numbers that the paper prints for one of its models."""
    named = ((name.partition("@"), number.value) for name, number in numbers().items())
    return {quantity: value for (quantity, _, model), value in named if model == alias}
