"""The vocabulary of an intervention: where (`Site`), what to write (`Edit`), what to return (`Read`).

A *batch* here is a list of rows; every row is one run of the model, usually one candidate edit. An `Edit` writes at one
site of one layer for some of the rows; its heads and positions may differ from row to row, so a batch may try another
head in every row. Tensors are always ordered rows, heads, positions, width; sites without heads drop that axis.

| site | heads counted in | width | the point it names |
|---|---|---|---|
| `resid` | - | hidden | input of a layer; layer 0 is the (scaled) embedding, `n_layers` the final norm's input |
| `q` | query heads | head_dim | output of the query projection, before any norm and before RoPE |
| `k`, `v` | KV heads (`scope="group"`) or query heads (`scope="head"`, edits only) | head_dim | raw projections |
| `q_rot` | query heads | head_dim | query after norm and RoPE |
| `k_rot`, `v_seen` | query heads | head_dim | key after norm and RoPE, value: the copy that one query head sees |
| `scores` | query heads | keys | what enters the softmax: scaled, soft-capped, masked |
| `pattern` | query heads | keys | what leaves the softmax and multiplies the values |
| `z` | query heads | head_dim | the head's output, input of the output projection |
| `mlp_out` | - | hidden | output of the MLP module, before any norm that follows it |
| `logits` | - | vocabulary | after a final softcap, if the model has one |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

Site: TypeAlias = Literal[
    "resid", "q", "k", "v", "q_rot", "k_rot", "v_seen", "scores", "pattern", "z", "mlp_out", "logits"
]
Mode: TypeAlias = Literal["set", "add"]
Scope: TypeAlias = Literal["group", "head"]
Attention: TypeAlias = Literal["live", "frozen"]
Index: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Tensor

Take: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""What to keep of the values of some rows: called with the values and the numbers of the rows."""

SITES: tuple[Site, ...] = get_args(Site)
HEADLESS: frozenset[Site] = frozenset({"resid", "mlp_out", "logits"})
KEYED: frozenset[Site] = frozenset({"scores", "pattern"})
"""Sites whose width is the number of keys."""


class SurgeryError(ValueError):
    """An edit or a read that cannot mean what it says."""


class NothingEdited(SurgeryError):
    """The edits of a call change nothing at all: the result would be the clean run under another name."""


def _rows_of_indices(index: Index, what: str) -> Tensor:
    """An index as a table: one line for all rows, or one line a row."""
    table = torch.as_tensor(index, dtype=torch.long)
    table = table.reshape(1, -1) if table.ndim < 2 else table  # (1 or rows, count)
    if table.ndim != 2 or table.numel() == 0:
        raise SurgeryError(f"{what} must be one index, a list of them, or a (rows, count) table; got {table.shape}")
    if int(table.min()) < 0:
        raise SurgeryError(f"{what} are counted from 0; got {int(table.min())}")
    ordered = table.sort(dim=1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise SurgeryError(
            f"{what} name the same index twice in a row: the outcome would depend on the order of writes"
        )
    return table


@dataclass(frozen=True, eq=False)
class Edit:
    """Set a site to a value, or add the value to it, at some heads and positions of some rows.

    `value` broadcasts to (rows, heads, positions, width); to (rows, positions, width) at sites without heads. `rows`
    lists the rows of the batch that the edit touches (all of them when it is None); `heads` and `positions` are one
    list for all of those rows, or a table with one line for each. `where`, a mask that broadcasts to (rows, heads,
    positions), exempts the places where it is false: they keep their current value. `scope` must be given at `k` and
    `v`, where an edit can act on the whole KV group (`heads` are then KV heads) or on what single query heads see.
    """

    site: Site
    layer: int
    value: Tensor
    positions: Tensor
    heads: Tensor | None = None
    rows: Tensor | None = None
    mode: Mode = "set"
    scope: Scope | None = None
    where: Tensor | None = None

    def __init__(
        self,
        site: Site,
        layer: int,
        value: Tensor,
        *,
        positions: Index,
        heads: Index | None = None,
        rows: Index | None = None,
        mode: Mode = "set",
        scope: Scope | None = None,
        where: Tensor | None = None,
    ) -> None:
        check_site(site, heads)
        if (site in ("k", "v")) != (scope is not None):
            raise SurgeryError(
                f"site {site!r} with scope {scope!r}: an edit of k or v says scope='group' or scope='head' "
                "(one query head's copy); no other site takes a scope"
            )
        lines = None if rows is None else torch.as_tensor(rows, dtype=torch.long).reshape(-1)  # (touched rows,)
        if lines is not None and lines.numel() == 0:
            raise NothingEdited(f"an edit at {site}, layer {layer} lists no rows")
        if lines is not None and lines.unique().numel() != lines.numel():
            raise SurgeryError(f"an edit at {site}, layer {layer} lists a row twice")
        if where is not None and not bool(where.any()):
            raise NothingEdited(f"an edit at {site}, layer {layer} is masked out everywhere")
        fields = {
            "site": site,
            "layer": layer,
            "value": value,
            "positions": _rows_of_indices(positions, "positions"),
            "heads": None if heads is None else _rows_of_indices(heads, "heads"),
            "rows": lines,
            "mode": mode,
            "scope": scope,
            "where": where,
        }
        for name, field in fields.items():
            object.__setattr__(self, name, field)


@dataclass(frozen=True, eq=False)
class Read:
    """Return a site at some heads and positions of every row, as (rows, heads, positions, width).

    `k` and `v` are read per KV head. `take` shrinks what is kept of it: it is called with the tensor of a few rows and
    the numbers of those rows, and what it returns (rows first) is kept instead; so a vocabulary of logits need not be.
    """

    site: Site
    layer: int
    positions: Tensor
    heads: Tensor | None = None
    take: Take | None = None

    def __init__(
        self,
        site: Site,
        layer: int = -1,
        *,
        positions: Index,
        heads: Index | None = None,
        take: Take | None = None,
    ) -> None:
        check_site(site, heads)
        fields = {
            "site": site,
            "layer": layer,
            "positions": _rows_of_indices(positions, "positions"),
            "heads": None if heads is None else _rows_of_indices(heads, "heads"),
            "take": take,
        }
        for name, field in fields.items():
            object.__setattr__(self, name, field)


def check_site(site: str, heads: Index | None) -> None:
    """Refuse an unknown site, and heads where there are none."""
    if site not in SITES:
        raise SurgeryError(f"unknown site {site!r}; the sites are {', '.join(SITES)}")
    if site in HEADLESS and heads is not None:
        raise SurgeryError(f"site {site!r} has no heads; leave heads out")
    if site not in HEADLESS and heads is None:
        raise SurgeryError(f"site {site!r} is per head; say which heads")
