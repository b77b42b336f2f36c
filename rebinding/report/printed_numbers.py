"""The printed numbers that a model is compared with: the paper's own, or those that a plant's construction promises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rebinding.paper.numbers import PublishedNumber, numbers

COUNTS = ("heads.kept", "heads.total")
"""Quantities that are whole numbers."""


def printed_numbers(about: Mapping[str, Any]) -> Mapping[str, float]:
    """The numbers by quantity, such as `binding.q.dR`; empty if nothing is printed about the model."""
    return about.get("printed") or {name: number.value for name, number in _of_paper(about.get("alias")).items()}


def printed_text(about: Mapping[str, Any]) -> Mapping[str, str]:
    """The same as text, with as many decimals as printed."""
    predicted = {
        quantity: f"{value:.{0 if quantity in COUNTS else 2}f}" for quantity, value in about.get("printed", {}).items()
    }
    return predicted or paper_text(about.get("alias"))


def paper_text(alias: str | None) -> Mapping[str, str]:
    """The numbers of the paper as text, by quantity."""
    return {quantity: number.printed.replace("-", "−") for quantity, number in _of_paper(alias).items()}


def _of_paper(alias: str | None) -> Mapping[str, PublishedNumber]:
    """The numbers that the paper prints for one of its models."""
    by_name = ((name.partition("@"), number) for name, number in numbers().items())
    return {quantity: number for (quantity, _, model), number in by_name if alias and model == alias}
