"""Select senders by their effects in each prompt, and name their tokens.

The token at which a head acts may move from prompt to prompt. Its effects, one for each prompt and place, are averaged
by place (`context_box[1]`) or by function (`context_asked`): by the naming whose means explain more of the variance. A
head that also has effects at boxes without a function is named by place. So is a head without effect at some place
where the function occurs, whatever the variance explained: a head that has an effect at the swap's last label only if
that label is the partner's is named by "last label".

**Significance.** The spread is that within the strata of the design (`rebinding.task.prompts`): a head that fetches
slot 2 has no effect in most strata and a full effect in the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtrit

from rebinding.evidence import Evidence
from rebinding.experiments.search.graph import Node
from rebinding.task.prompts import spread
from rebinding.verdicts.estimates import Array

NOTHING = 0.1
"""An effect below this share of the head's effect at its strongest place counts as none."""

Functions: TypeAlias = Mapping[int, Mapping[str, str]]
"""Prompt -> place -> function, for places with a function."""
Strata: TypeAlias = Mapping[int, int]
"""Prompt -> the number of its stratum."""


class NodeEffect(NamedTuple):
    """The effect of a node on the receivers of a step: the mean loss of score without it, with interval, in logits."""

    node: Node
    component: str
    effect: float
    low: float
    high: float


def family(place: str) -> str:
    """The name of a place without the number of its statement or label."""
    return re.sub(r"swap_(first|second)", "swap_label", re.sub(r"\[\d+\]", "", place))


def select_senders(
    rows: pd.DataFrame,
    strata: Strata,
    names: Functions | Sequence[Node],
    named: Sequence[Node] = (),
    *,
    min_effect: float,
    alpha: float,
) -> list[NodeEffect]:
    """The senders whose mean effect over all prompts (the keys of `strata`) is at least `min_effect` and significantly
    not 0.

    An effect is significant by a Student interval at error rate `alpha` over all senders that were run: that of the
    sender itself, or of all places of its head in one family (such as all labels of the context) together. A sender
    without a row has effect 0. `names` are the functions of places, or the nodes to test; `named` are nodes whose heads
    have a naming already.
    """
    if rows.empty:
        return []
    prompts, number = list(strata), list(strata.values())
    tested = len(rows.drop_duplicates(["component", "layer", "head", "place"]))
    level = alpha / (4 * tested)  # two sides, two chances
    table = rows.assign(family=rows["place"].map({place: family(place) for place in rows["place"].unique()}))
    line = rows["prompt"].map({prompt: line for line, prompt in enumerate(prompts)}).to_numpy()  # (row,)
    effect = (rows["before"] - rows["after"]).to_numpy(dtype=np.float64)  # (row,)
    place, function = (rows[name].to_numpy(dtype=str) for name in ("place", "function"))  # (row,)
    naming = _Naming(prompts, names if isinstance(names, Mapping) else {})
    selected = []
    for key, at in table.groupby(["component", "layer", "head", "family"]).indices.items():
        (component, layer, head, family_name) = cast("tuple[str, int, int, str]", key)
        cells = _Cells(len(prompts), line[at], place[at], effect[at])
        of_family = _mean(Node(int(layer), int(head), str(family_name)), str(component), cells.total(), number, level)
        own_nodes = [node for node in named if node[:2] == (layer, head)]
        if isinstance(names, Mapping):
            effects = naming.name_tokens(cells, {node.token for node in own_nodes})
        else:
            effects = _effects_of_nodes(cells, function[at], [node for node in names if node[:2] == (layer, head)])
        for name, values in effects:
            node_effect = _mean(Node(int(layer), int(head), name), str(component), values, number, level)
            if abs(node_effect.effect) >= min_effect and (is_significant(node_effect) or is_significant(of_family)):
                selected.append(node_effect)
    return selected


def is_significant(effect: NodeEffect) -> bool:
    """Whether the interval of an effect excludes 0."""
    return not effect.low <= 0.0 <= effect.high


def led_by_expected(evidence: Evidence, crossing: str) -> Array:
    """The loss without the expected tokens of a crossing minus the loss without its other tokens, by prompt."""
    rows = evidence.rows[evidence.rows["crossing"] == crossing].sort_values("prompt")
    difference: Array = (rows["expected_tokens"] - rows["other_tokens"]).to_numpy(dtype=np.float64)
    return difference


def _mean(node: Node, component: str, values: Array, strata: Sequence[int], level: float) -> NodeEffect:
    """The mean of `values` (prompt,) and its interval, each tail at `level`."""
    mean, error, freedom = spread(values, strata)
    half = float(stdtrit(freedom, 1 - level) * error) if freedom else float("inf")
    return NodeEffect(node, component, float(mean), float(mean) - half, float(mean) + half)


@dataclass(frozen=True, eq=False)
class _Cells:
    """The effects of one head at the places of a family: `effect` (row,) with the number of its prompt and its
    place."""

    prompts: int
    line: npt.NDArray[np.integer[Any]]
    place: npt.NDArray[np.str_]
    effect: Array

    def total(self) -> Array:
        """The effect in each prompt (prompt,); 0 without a row."""
        return self.where(np.ones(len(self.line), dtype=bool))

    def where(self, chosen: npt.NDArray[np.bool_]) -> Array:
        """The same for some rows only."""
        return np.bincount(self.line[chosen], self.effect[chosen], self.prompts).astype(np.float64)

    def by_place(self, places: Sequence[str]) -> Array:
        """The effect at each place (prompt, place); 0 if nothing was run."""
        table = np.zeros((self.prompts, len(places)))
        column = np.searchsorted(np.array(places), self.place)
        np.add.at(table, (self.line, column), self.effect)
        return table


@dataclass(frozen=True, eq=False)
class _Naming:
    """The functions of places in each prompt, looked up once for all heads."""

    prompts: Sequence[int]
    functions: Functions
    words: dict[tuple[str, ...], npt.NDArray[np.str_]] = field(default_factory=dict)

    @cached_property
    def places_by_family(self) -> Mapping[str, set[str]]:
        """The places with a function in some prompt, by family."""
        places: dict[str, set[str]] = {}
        for place in {place for functions in self.functions.values() for place in functions}:
            places.setdefault(family(place), set()).add(place)
        return places

    def functions_at(self, places: Sequence[str]) -> npt.NDArray[np.str_]:
        """The function of each place in each prompt (prompt, place); empty if it has none."""
        key = tuple(places)
        if key not in self.words:
            self.words[key] = np.array(
                [[self.functions.get(prompt, {}).get(place, "") for place in key] for prompt in self.prompts]
            )
        return self.words[key]

    def name_tokens(self, cells: _Cells, taken: set[str]) -> Iterator[tuple[str, Array]]:
        """The names of one head's tokens in a family, with the effects in each prompt; `taken` are names that the head
        has already."""
        own = set(cells.place.tolist())
        places = sorted(own.union(*(self.places_by_family.get(name, set()) for name in {family(at) for at in own})))
        functions, table = self.functions_at(places), cells.by_place(places)  # (prompt, place)
        names = sorted(set(functions.flat) - {""})
        is_idle_elsewhere = np.abs(table[functions == ""]).sum() <= np.abs(table).sum() / 2
        strengths = np.abs(table).mean(axis=0)[(functions != "").any(axis=0)]  # at each place that has a function
        acts_everywhere = strengths.min(initial=np.inf) >= NOTHING * np.abs(table).mean(axis=0).max()
        explains_more = (
            is_idle_elsewhere
            and acts_everywhere
            and _explained(table, functions) > _explained(table, np.broadcast_to(places, functions.shape))
        )
        if names and not taken & set(places) and (explains_more or taken & set(names)):
            yield from ((str(name), np.where(functions == name, table, 0.0).sum(axis=1)) for name in names)
        else:
            yield from zip(places, table.T, strict=True)


def _effects_of_nodes(
    cells: _Cells, function: npt.NDArray[np.str_], nodes: Sequence[Node]
) -> Iterator[tuple[str, Array]]:
    """The effects of the nodes that have rows among the cells, by the nodes' own names."""
    for node in nodes:
        is_at_node = (cells.place == node.token) | (function == node.token)
        if is_at_node.any():
            yield node.token, cells.where(is_at_node)


def _explained(table: Array, names: npt.NDArray[np.str_]) -> float:
    """The share of the variance of all cells that lies between names."""
    total = float(((table - table.mean()) ** 2).sum())
    within = sum(float(((table[names == name] - table[names == name].mean()) ** 2).sum()) for name in np.unique(names))
    return 1 - within / total if total else 0.0
