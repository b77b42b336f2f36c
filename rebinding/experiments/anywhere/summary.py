"""From what senders do, prompt by prompt, to the ones that are kept, and to the name of their token.

A head may stand at tokens that move from prompt to prompt. Its effects, one for each prompt and place, are averaged by
place (`context_box[1]`) or by function (`context_asked`), whichever tells more of them apart: the naming under which
the means explain the larger share of the variance. A head that does something for boxes without a function as well is
named by place. So is one that does nothing at some place where the function occurs, however well the function tells
its prompts apart: a head at the swap's last label that counts where that label is the partner's stands at the last one.

**How sure.** What counts as spread is what is left within the strata of the design (`rebinding.world.strata`): a head
that fetches slot 2 does nothing in most of them and everything in the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from rebinding.paper.graph import Node
from rebinding.world.strata import spread

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
    rows = rows.assign(family=rows["place"].map(family))
    prompts, number = list(strata), list(strata.values())
    tested = len(rows.drop_duplicates(["component", "layer", "head", "place"]))
    level = alpha / (4 * tested)  # two sides, two chances
    found = []
    for key, cells in rows.groupby(["component", "layer", "head", "family"]):
        (component, layer, head, alike) = cast("tuple[str, int, int, str]", key)
        everywhere = _mean(
            Node(int(layer), int(head), str(alike)), str(component), _by_prompt(cells, prompts), number, level
        )
        cells_of = _named(cells, prompts, names, known) if isinstance(names, Mapping) else _asked(cells, prompts, names)
        for name, values in cells_of:
            one = _mean(Node(int(layer), int(head), name), str(component), values, number, level)
            if abs(one.effect) >= least and (sure(one) or sure(everywhere)):
                found.append(one)
    return found


def sure(found: Found) -> bool:
    """Whether its interval leaves 0 out."""
    return not found.low <= 0.0 <= found.high


def _mean(node: Node, component: str, values: Array, strata: Sequence[int], level: float) -> Found:
    """The mean of `values` (prompt,) and its interval, each tail at `level`."""
    mean, error, freedom = spread(values, strata)
    half = float(stats.t.ppf(1 - level, freedom) * error) if freedom else float("inf")
    return Found(node, component, float(mean), float(mean) - half, float(mean) + half)


def _by_prompt(cells: pd.DataFrame, prompts: Sequence[int]) -> Array:
    """The effect in each prompt (prompt,), 0 where there is no row."""
    effect = (cells["before"] - cells["after"]).groupby(cells["prompt"]).sum()
    return effect.reindex(list(prompts), fill_value=0.0).to_numpy(dtype=np.float64)


def _asked(cells: pd.DataFrame, prompts: Sequence[int], nodes: Sequence[Node]) -> Iterator[tuple[str, Array]]:
    """The effects of those of some nodes that these rows are about, by the nodes' own names."""
    head = (cells["layer"].iloc[0], cells["head"].iloc[0])
    for node in nodes:
        mine = cells[(cells["place"] == node.token) | (cells["function"] == node.token)]
        if head == (node.layer, node.head) and len(mine):
            yield node.token, _by_prompt(mine, prompts)


def _named(
    cells: pd.DataFrame, prompts: Sequence[int], functions: Functions, known: Sequence[Node]
) -> Iterator[tuple[str, Array]]:
    """The names that one head's tokens of a family get, with the effects in each prompt; those it has if any."""
    alike = {place for one in functions.values() for place in one if family(place) == cells["family"].iloc[0]}
    places = sorted(alike | set(cells["place"]))  # where nothing was run, there is no effect
    by_place = {place: _by_prompt(cells[cells["place"] == place], prompts) for place in places}
    words = [[functions.get(one, {}).get(place, "") for place in places] for one in prompts]
    doing = np.array(words)  # (prompt, place)
    table = np.stack([by_place[place] for place in places], axis=1)  # (prompt, place)
    named = sorted(set(doing.flat) - {""})
    head = (cells["layer"].iloc[0], cells["head"].iloc[0])
    taken = {node.token for node in known if (node.layer, node.head) == head}
    idle = np.abs(table[doing == ""]).sum() <= np.abs(table).sum() / 2
    done = np.abs(table).mean(axis=0)[(doing != "").any(axis=0)]  # at each place that has a function
    everywhere = done.min(initial=np.inf) >= NOTHING * np.abs(table).mean(axis=0).max()
    better = idle and everywhere and _explained(table, doing) > _explained(table, np.broadcast_to(places, doing.shape))
    if named and not taken & set(places) and (better or taken & set(named)):
        yield from ((name, np.where(doing == name, table, 0.0).sum(axis=1)) for name in named)
    else:
        yield from ((place, by_place[place]) for place in places)


def _explained(table: Array, names: npt.NDArray[np.str_]) -> float:
    """The share of the variance of all cells that lies between names."""
    total = float(((table - table.mean()) ** 2).sum())
    within = sum(float(((table[names == name] - table[names == name].mean()) ** 2).sum()) for name in np.unique(names))
    return 1 - within / total if total else 0.0
