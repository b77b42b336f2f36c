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

Some families differ. A layer may lack heads (linear attention) and then has `resid` and `mlp_out` only. A layer may
reuse the keys and values of a layer below (Gemma 3n, 4): `k` and `v` are read there, and an edit of them in the upper
layer changes the copies of its own heads only. Where key and value share a projection, each is taken where it enters
its own norm. A gate between attention and output projection belongs to `z` (Qwen3-Next). The `pattern` of a head with
a sink (GPT-OSS) leaves the sink out: its rows sum to less than one. With several residual streams (Gemma 3n), `resid`
holds them side by side.

Of the logits only as much of the vocabulary is computed as is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.checks import Index, SurgeryError, batch_rows, check_value, check_word, index_table, layer_number

Site: TypeAlias = Literal[
    "resid", "q", "k", "v", "q_rot", "k_rot", "v_seen", "scores", "pattern", "z", "mlp_out", "logits"
]
Mode: TypeAlias = Literal["set", "add"]
Scope: TypeAlias = Literal["group", "head"]
Attention: TypeAlias = Literal["live", "frozen"]

Reduce: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Reduces the values of some rows to what is kept: called with the values and the numbers of the rows."""


@dataclass(frozen=True, eq=False)
class LogitsOf:
    """The reduction to the logits of some tokens, a line of `tokens` (row, token) for each row.

    It selects them from all logits; a surgeon may instead compute these alone.
    """

    tokens: Tensor

    def __call__(self, logits: Tensor, rows: Tensor) -> Tensor:
        index = self.tokens[rows].to(logits.device)[:, None, :].expand(-1, logits.shape[1], -1)
        return logits.gather(-1, index).float()  # (row, position, token)


SITES: tuple[Site, ...] = get_args(Site)
MODES: tuple[Mode, ...] = get_args(Mode)
SCOPES: tuple[Scope, ...] = get_args(Scope)
ATTENTIONS: tuple[Attention, ...] = get_args(Attention)
HEADLESS: frozenset[Site] = frozenset({"resid", "mlp_out", "logits"})
KEYED: frozenset[Site] = frozenset({"scores", "pattern"})
"""Sites whose width is the number of keys."""


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
        check_scope(site, scope)
        check_word("mode", mode, MODES)
        edit = f"an edit at {site}, layer {layer}"
        check_value(value, where, edit)
        self.__dict__.update(  # the class is frozen
            site=site,
            layer=layer_number(layer),
            value=value,
            positions=index_table(positions, "positions"),
            heads=None if heads is None else index_table(heads, "heads"),
            rows=None if rows is None else batch_rows(rows, edit),
            mode=mode,
            scope=scope,
            where=where,
        )


@dataclass(frozen=True, eq=False)
class Read:
    """Return a site at some heads and positions of every row, as (rows, heads, positions, width).

    `k` and `v` are read per KV head. `reduce` is called with the tensor of a few rows and the numbers of those
    rows. What it returns (rows first) is kept instead, so a vocabulary of logits need not be kept.
    """

    site: Site
    layer: int
    positions: Tensor
    heads: Tensor | None = None
    reduce: Reduce | None = None

    def __init__(
        self,
        site: Site,
        layer: int = -1,
        *,
        positions: Index,
        heads: Index | None = None,
        reduce: Reduce | None = None,
    ) -> None:
        check_site(site, heads)
        self.__dict__.update(  # the class is frozen
            site=site,
            layer=layer_number(layer),
            positions=index_table(positions, "positions"),
            heads=None if heads is None else index_table(heads, "heads"),
            reduce=reduce,
        )


def check_site(site: str, heads: Index | None) -> None:
    """Refuse an unknown site, and heads at a site without heads."""
    if site not in SITES:
        raise SurgeryError(f"unknown site {site!r}; the sites are {', '.join(SITES)}")
    if site in HEADLESS and heads is not None:
        raise SurgeryError(f"site {site!r} has no heads; leave heads out")
    if site not in HEADLESS and heads is None:
        raise SurgeryError(f"site {site!r} is per head; say which heads")


def check_scope(site: Site, scope: str | None) -> None:
    """Refuse an edit of k or v without a scope, and a scope at any other site."""
    if (site in ("k", "v")) != (scope is not None):
        raise SurgeryError(
            f"site {site!r} with scope {scope!r}: an edit of k or v says scope='group' or scope='head' "
            "(one query head's copy); no other site takes a scope"
        )
    if scope is not None:
        check_word("scope", scope, SCOPES)


def check_kept_sites(keep: Collection[str]) -> None:
    """Refuse sites that a recording cannot keep."""
    if isinstance(keep, str):
        raise SurgeryError(f"keep must be a set of sites; got the word {keep!r}. Write keep={{{keep!r}}}")
    names = list(keep)
    if "logits" in names:
        raise SurgeryError("logits are not kept for every token; read them where they are wanted")
    unknown = [name for name in names if name not in SITES]
    if unknown:
        raise SurgeryError(f"keep names the unknown site {unknown[0]!r}; the sites are {', '.join(SITES)}")


def reduced_logits(model: nn.Module, anatomy: Anatomy, resid: Tensor, reduce: Reduce | None, rows: Tensor) -> Tensor:
    """What a reduction keeps of the logits of `resid` (row, position, hidden), for these rows of a call.

    Of the reduction to some tokens only their logits are computed. The product with the whole vocabulary is the largest
    of a run that continues one token: as large as all layers of Gemma-3-270M together.
    """
    if isinstance(reduce, LogitsOf):
        return anatomy.logits(model, resid, reduce.tokens[rows]).float()  # (row, position, token)
    logits = anatomy.logits(model, resid)
    return logits if reduce is None else reduce(logits, rows)


def reads_vocabulary(read: Read) -> bool:
    """Whether a read needs the logits of the whole vocabulary."""
    return read.site == "logits" and not isinstance(read.reduce, LogitsOf)
