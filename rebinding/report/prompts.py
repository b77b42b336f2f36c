"""The first prompts of experiments as text: the original, and its counterfactual."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rebinding.report.folder import Model


@dataclass(frozen=True)
class PromptPair:
    """The first prompts of some experiments. The two texts differ in every second piece."""

    model: Model
    id: int
    original: tuple[str, ...]
    counterfactual: tuple[str, ...] | None
    used_by: tuple[str, ...]
    """The kinds of evidence that begin with this pair."""


def pairs(model: Model, labels: Iterable[str]) -> tuple[PromptPair, ...]:
    """The first pairs of the evidence with these labels, each once; pairs with a counterfactual first."""
    entries = model.about.get("evidence", {})
    kinds_by_pair: dict[tuple[Any, ...], dict[str, None]] = {}
    for label in dict.fromkeys(labels):
        entry = entries.get(label, {"pair": None})
        if (pair := entry["pair"]) is not None:
            counterfactual = None if pair["counterfactual"] is None else tuple(pair["counterfactual"])
            key = (counterfactual is None, pair["id"], tuple(pair["original"]), counterfactual)
            kinds_by_pair.setdefault(key, {})[entry["kind"]] = None
    ordered = sorted(kinds_by_pair.items(), key=lambda item: item[0][0])
    return tuple(
        PromptPair(model, id, original, counterfactual, tuple(kinds))
        for (_, id, original, counterfactual), kinds in ordered
    )
