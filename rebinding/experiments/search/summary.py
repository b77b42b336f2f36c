"""From what senders do, prompt by prompt, to the ones that are kept, and to the name of their token.

A head may stand at tokens that move from prompt to prompt. Its effects, one for each prompt and place, are averaged by
place (`context_box[1]`) or by function (`context_asked`), whichever tells more of them apart: the naming under which
the means explain the larger share of the variance. A head that does something for boxes without a function as well is
named by place. So is one that does nothing at some place where the function occurs, however well the function tells
its prompts apart: a head at the swap's last label that counts where that label is the partner's stands at the last one.

**How sure.** What counts as spread is what is left within the strata of the design (`rebinding.task.strata`): a head
that fetches slot 2 does nothing in most of them and everything in the others.
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
from scipy import stats

from rebinding.evidence import Evidence
from rebinding.paper.graph import Node
from rebinding.task.strata import spread

NOTHING = 0.1
"""Less than this share of what a head does at its strongest place is nothing."""

Array: TypeAlias = npt.NDArray[np.float64]
Functions: TypeAlias = Mapping[int, Mapping[str, str]]
"""Prompt -> place -> function, where a place has one."""
Strata: TypeAlias = Mapping[int, int]
"""Prompt -> the number of its stratum."""


class Found(NamedTuple):
    """A node that sends to the receivers of a step: mean loss of score without it, with interval, in logits."""

    node: Node
    component: str
    effect: float
    low: float
    high: float


def family(place: str) -> str:
    """What a place is called without saying which statement or label it belongs to."""
    return re.sub(r"swap_(first|second)", "swap_label", re.sub(r"\[\d+\]", "", place))


def kept(
    rows: pd.DataFrame,
    strata: Strata,
    names: Functions | Sequence[Node],
    known: Sequence[Node] = (),
    *,
    least: float,
    alpha: float,
) -> list[Found]:
    """The senders whose mean effect over all prompts (the keys of `strata`) is at least `least` and surely not 0.

    Sure is a Student interval at error rate `alpha` over all senders that were run: of the sender itself, or of all
    places of its head that are alike (all labels of the context, say) together. A sender without a row has effect 0.
    `names` are what places are for, or the nodes that are asked about; `known` are nodes whose heads have a naming.
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
    found = []
    for key, at in table.groupby(["component", "layer", "head", "family"]).indices.items():
        (component, layer, head, alike) = cast("tuple[str, int, int, str]", key)
        cells = _Cells(len(prompts), line[at], place[at], effect[at])
        everywhere = _mean(Node(int(layer), int(head), str(alike)), str(component), cells.total(), number, level)
        taken = [node for node in known if node[:2] == (layer, head)]
        if isinstance(names, Mapping):
            told = naming.named(cells, {node.token for node in taken})
        else:
            told = _asked(cells, function[at], [node for node in names if node[:2] == (layer, head)])
        for name, values in told:
            one = _mean(Node(int(layer), int(head), name), str(component), values, number, level)
            if abs(one.effect) >= least and (sure(one) or sure(everywhere)):
                found.append(one)
    return found


def sure(found: Found) -> bool:
    """Whether its interval leaves 0 out."""
    return not found.low <= 0.0 <= found.high


def led_by_expected(evidence: Evidence, crossing: str) -> Array:
    """Of one crossing, by prompt: what is lost without the expected tokens, less what is lost without all others."""
    rows = evidence.rows[evidence.rows["crossing"] == crossing].sort_values("prompt")
    found: Array = (rows["expected"] - rows["elsewhere"]).to_numpy(dtype=np.float64)
    return found


def _mean(node: Node, component: str, values: Array, strata: Sequence[int], level: float) -> Found:
    """The mean of `values` (prompt,) and its interval, each tail at `level`."""
    mean, error, freedom = spread(values, strata)
    half = float(stats.t.ppf(1 - level, freedom) * error) if freedom else float("inf")
    return Found(node, component, float(mean), float(mean) - half, float(mean) + half)


@dataclass(frozen=True, eq=False)
class _Cells:
    """What one head does at the places of a family: effects (row,) with the line of their prompt and their place."""

    prompts: int
    line: npt.NDArray[np.integer[Any]]
    place: npt.NDArray[np.str_]
    effect: Array

    def total(self) -> Array:
        """The effect in each prompt (prompt,), 0 where there is no row."""
        return self.where(np.ones(len(self.line), dtype=bool))

    def where(self, mine: npt.NDArray[np.bool_]) -> Array:
        """The same of some rows only."""
        return np.bincount(self.line[mine], self.effect[mine], self.prompts).astype(np.float64)

    def by_place(self, places: Sequence[str]) -> Array:
        """The same at each place (prompt, place): where nothing was run, there is no effect."""
        table = np.zeros((self.prompts, len(places)))
        column = np.searchsorted(np.array(places), self.place)
        np.add.at(table, (self.line, column), self.effect)
        return table


@dataclass(frozen=True, eq=False)
class _Naming:
    """What places are for in each prompt, looked up once for all heads."""

    prompts: Sequence[int]
    functions: Functions
    words: dict[tuple[str, ...], npt.NDArray[np.str_]] = field(default_factory=dict)

    @cached_property
    def alike(self) -> Mapping[str, set[str]]:
        """The places that have a function in some prompt, by family."""
        found: dict[str, set[str]] = {}
        for one in {place for told in self.functions.values() for place in told}:
            found.setdefault(family(one), set()).add(one)
        return found

    def doing(self, places: Sequence[str]) -> npt.NDArray[np.str_]:
        """The function of each place in each prompt (prompt, place), empty where it has none."""
        key = tuple(places)
        if key not in self.words:
            self.words[key] = np.array(
                [[self.functions.get(one, {}).get(at, "") for at in key] for one in self.prompts]
            )
        return self.words[key]

    def named(self, cells: _Cells, taken: set[str]) -> Iterator[tuple[str, Array]]:
        """The names that one head's tokens of a family get, with the effects in each prompt; those it has if any."""
        here = set(cells.place.tolist())
        places = sorted(here.union(*(self.alike.get(name, set()) for name in {family(place) for place in here})))
        doing, table = self.doing(places), cells.by_place(places)  # (prompt, place)
        named = sorted(set(doing.flat) - {""})
        idle = np.abs(table[doing == ""]).sum() <= np.abs(table).sum() / 2
        done = np.abs(table).mean(axis=0)[(doing != "").any(axis=0)]  # at each place that has a function
        everywhere = done.min(initial=np.inf) >= NOTHING * np.abs(table).mean(axis=0).max()
        better = (
            idle and everywhere and _explained(table, doing) > _explained(table, np.broadcast_to(places, doing.shape))
        )
        if named and not taken & set(places) and (better or taken & set(named)):
            yield from ((name, np.where(doing == name, table, 0.0).sum(axis=1)) for name in named)
        else:
            yield from zip(places, table.T, strict=True)


def _asked(cells: _Cells, function: npt.NDArray[np.str_], nodes: Sequence[Node]) -> Iterator[tuple[str, Array]]:
    """The effects of those of some nodes that these rows are about, by the nodes' own names."""
    for node in nodes:
        mine = (cells.place == node.token) | (function == node.token)
        if mine.any():
            yield node.token, cells.where(mine)


def _explained(table: Array, names: npt.NDArray[np.str_]) -> float:
    """The share of the variance of all cells that lies between names."""
    total = float(((table - table.mean()) ** 2).sum())
    within = sum(float(((table[names == name] - table[names == name].mean()) ** 2).sum()) for name in np.unique(names))
    return 1 - within / total if total else 0.0
