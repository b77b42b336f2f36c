"""The vocabulary of an intervention: where (`Site`), what to write (`Edit`), what to return (`Read`).

Edits and reads check themselves when they are made; indices, words, values, prompts and sources have the same checks in
all surgeons.

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

import operator
import reprlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy

Index: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Tensor

INTEGERS = frozenset(
    {torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64}
)
"""The types of tensors that hold whole numbers."""


class SurgeryError(ValueError):
    """An edit or a read is invalid."""


class NothingEdited(SurgeryError):
    """The edits of a row change nothing that is read: the result would be the clean run."""


def _integers(index: Index, what: str) -> Tensor:
    """An index as a tensor of integers. Floats are not rounded, and True is not 1: both are refused."""
    expected = f"{what} must be integers: a number, a range, a list, a table with lines of one length, or a tensor"
    try:
        table = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SurgeryError(f"{expected}; got {reprlib.repr(index)}") from error
    if (table.numel() and table.dtype not in INTEGERS) or _has_bool(index):
        actual = f"a tensor of {index.dtype}" if isinstance(index, Tensor) else reprlib.repr(index)
        raise SurgeryError(f"{expected}; got {actual}")
    return table.long()


def _has_bool(index: object) -> bool:
    if isinstance(index, Tensor):
        return index.dtype == torch.bool
    return isinstance(index, bool) or (isinstance(index, (list, tuple)) and any(map(_has_bool, index)))


def index_table(index: Index, what: str) -> Tensor:
    """An index as a table: one line for all rows, or one line a row."""
    table = _integers(index, what)
    table = table.reshape(1, -1) if table.ndim < 2 else table  # (1 or rows, count)
    if table.ndim != 2 or table.numel() == 0:
        raise SurgeryError(
            f"{what} must be one index, a list of them, or a (rows, count) table; got shape {tuple(table.shape)}"
        )
    if int(table.min()) < 0:
        raise SurgeryError(f"{what} are counted from 0; got {int(table.min())}")
    ordered = table.sort(dim=1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise SurgeryError(
            f"{what} name the same index twice in a row: the outcome would depend on the order of writes"
        )
    return table


def batch_rows(rows: Index, edit: str) -> Tensor:
    """The rows of the batch that an edit touches, each once: (touched rows,)."""
    numbers = _integers(rows, "rows").reshape(-1)
    if numbers.numel() == 0:
        raise NothingEdited(f"{edit} lists no rows")
    distinct = numbers.unique()
    if int(distinct[0]) < 0:
        raise SurgeryError(f"rows are counted from 0; {edit} lists row {int(distinct[0])}")
    if distinct.numel() != numbers.numel():
        raise SurgeryError(f"{edit} lists a row twice; list it once, or write two edits")
    return numbers


def layer_number(layer: int) -> int:
    """A layer as an integer."""
    try:
        number = operator.index(layer)
    except TypeError as error:
        raise SurgeryError(f"layer must be an integer; got {reprlib.repr(layer)}") from error
    if isinstance(layer, bool):
        raise SurgeryError(f"layer must be an integer; got {layer}")
    return number


def check_word(option: str, word: str, words: Sequence[str]) -> None:
    """Refuse a word that is not one of an option's choices."""
    if word not in words:
        raise SurgeryError(
            f"unknown {option} {word!r}; write {' or '.join(f'{option}={choice!r}' for choice in words)}"
        )


def check_value(value: Tensor, where: Tensor | None, edit: str) -> None:
    """Refuse values that are no tensor, and masks that are not boolean or true nowhere."""
    if not isinstance(value, Tensor):
        raise SurgeryError(f"the value of {edit} must be a tensor; got {reprlib.repr(value)}. Use torch.tensor(value)")
    if where is None:
        return
    if not isinstance(where, Tensor) or where.dtype != torch.bool:
        actual = f"a tensor of {where.dtype}" if isinstance(where, Tensor) else reprlib.repr(where)
        raise SurgeryError(
            f"the mask of {edit} must be a boolean tensor; got {actual}. Compare it, as in where=mask > 0"
        )
    if not bool(where.any()):
        raise NothingEdited(f"{edit} is masked out everywhere")


def check_tokens(anatomy: Anatomy, tokens: Tensor) -> None:
    """Refuse tokens that are not integers of the vocabulary, (prompt, token), with two or more tokens a prompt."""
    if not isinstance(tokens, Tensor):
        raise SurgeryError(f"tokens must be a tensor (prompt, token); got a {type(tokens).__name__}. Use torch.tensor")
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise SurgeryError(
            "tokens must be (prompt, token), with at least one prompt and at least two tokens in each; "
            f"got shape {tuple(tokens.shape)}"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise SurgeryError(f"tokens must be integers, torch.int64 or torch.int32; got {tokens.dtype}")
    lowest, highest = torch.stack(tokens.aminmax()).tolist()  # one transfer from the device
    if lowest < 0 or highest >= anatomy.vocabulary:
        raise SurgeryError(
            f"tokens must be in the vocabulary of the model, 0..{anatomy.vocabulary - 1}; got token "
            f"{lowest if lowest < 0 else highest}. Encode prompts with the model's own tokenizer"
        )


def checked_source(source: Tensor | None, n_prompts: int) -> Tensor:
    """The recorded prompt that each row continues, (row,) on the CPU; left out, there is one row for each prompt.

    A list is refused: a call has as many rows as `source` has entries, and everything with rows is a tensor.
    """
    if source is None:
        return torch.arange(n_prompts)
    expected = "source must be a 1-d integer tensor, the number of a recorded prompt for each row"
    if not isinstance(source, Tensor):
        raise SurgeryError(f"{expected}; got a {type(source).__name__}. Use torch.tensor")
    if source.ndim != 1 or source.numel() == 0 or source.dtype not in INTEGERS:
        raise SurgeryError(f"{expected}; got {source.dtype} of shape {tuple(source.shape)}")
    source = source.cpu().long()
    lowest, highest = int(source.min()), int(source.max())
    if lowest < 0 or highest >= n_prompts:
        raise SurgeryError(
            f"source names prompt {lowest if lowest < 0 else highest}; the recording has prompts 0..{n_prompts - 1}"
        )
    return source


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
