"""The prompts that an experiment was run on, as text: the original, and the counterfactual beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rebinding.report.folder import Model


@dataclass(frozen=True)
class PromptPair:
    """The first prompts of some experiments. Every second piece of a text is where the two differ."""

    model: Model
    id: int
    original: tuple[str, ...]
    counterfactual: tuple[str, ...] | None
    used_by: tuple[str, ...]
    """Kinds of the evidence that begins with it."""


def pairs(model: Model, labels: Iterable[str]) -> tuple[PromptPair, ...]:
    """Every pair that evidence with these labels begins with, once; those with a counterfactual first."""
    known = model.about.get("evidence", {})
    found: dict[tuple[Any, ...], dict[str, None]] = {}
    for label in dict.fromkeys(labels):
        entry = known.get(label, {"pair": None})
        if (pair := entry["pair"]) is not None:
            other = pair["counterfactual"]
            key = (other is None, pair["id"], tuple(pair["original"]), None if other is None else tuple(other))
            found.setdefault(key, {})[entry["kind"]] = None
    ordered = sorted(found.items(), key=lambda one: one[0][0])
    return tuple(PromptPair(model, id, own, other, tuple(kinds)) for (_, id, own, other), kinds in ordered)
