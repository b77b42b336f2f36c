"""The vocabulary of an intervention: where (`Site`), what to write (`Edit`), what to return (`Read`).

Edits and reads check themselves when they are made; indices, words, values, prompts and sources have the same checks in
all surgeons.

A run has *rows*: each is one run of the model over a prompt, usually one candidate edit. Heads and positions of an edit
may differ from row to row, so a run may try another head in every row. Tensors are always ordered rows, heads,
positions, width; sites without heads drop that axis.

| site | heads counted in | width | the point it names |
|---|---|---|---|
| `resid` | - | hidden | input of a layer; layer 0 is the (scaled) embedding, `n_layers` the final norm's input |
| `q` | query heads | head_dim | output of the query projection, before any norm and before RoPE |
| `k`, `v` | KV heads (`scope="group"`) or query heads (`scope="head"`, own copies) | head_dim | raw projections |
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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy

Index: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Tensor
Position: TypeAlias = str | int
"""A name, or an index from the first token (negative: from the end)."""
At: TypeAlias = Position | Sequence[Position] | Index
Head: TypeAlias = tuple[int, int]
"""(layer, head), both from 0."""
Heads: TypeAlias = Head | Sequence[Head] | Tensor

INTEGERS = frozenset(
    {torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64}
)
"""The types of tensors that hold whole numbers."""


class SurgeryError(ValueError):
    """An edit or a read is invalid."""


class NothingEdited(SurgeryError):
    """The edits of a row change nothing that is read: the result would be the clean run."""


def integers(index: Index, what: str) -> Tensor:
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
    table = integers(index, what)
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
    numbers = integers(rows, "rows").reshape(-1)
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


OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "hook_resid_pre": "site='resid'",
        "hook_embed": "site='resid' of layer 0",
        "hook_resid_mid": "site='resid_mid'",
        "hook_resid_post": "site='resid' of the next layer",
        "hook_q": "site='q'",
        "hook_k": "site='k'",
        "hook_v": "site='v'",
        "hook_rot_q": "site='q_rot'",
        "hook_rot_k": "site='k_rot'",
        "hook_attn_scores": "site='scores'",
        "hook_pattern": "site='pattern'",
        "hook_z": "site='z'",
        "hook_mlp_out": "site='mlp_out'",
    }
)
"""TransformerLens's names of points, and ours. Others of its names have no site here."""


def name_in_our_words(site: str) -> str:
    """For an error: what a point of TransformerLens is here; nothing for any other name."""
    ours = OTHER_NAMES.get(site.rpartition(".")[2])
    return f"; TransformerLens's point of this name is {ours} here" if ours else ""


def check_mask(where: Tensor | None, edit: str) -> None:
    """Refuse a mask that is not boolean, or true nowhere."""
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
    "resid", "q", "k", "v", "q_rot", "k_rot", "v_seen", "scores", "pattern", "z", "mlp_out", "logits", "resid_mid"
]
ReadSite: TypeAlias = Site | Literal["answers"]
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
HEADLESS: frozenset[ReadSite] = frozenset({"resid", "resid_mid", "mlp_out", "logits"})
AFTER_LAYERS = ("logits", "answers")
KEYED: frozenset[ReadSite] = frozenset({"scores", "pattern"})
"""Sites whose width is the number of keys."""


@dataclass(frozen=True, eq=False)
class Edit:
    """Set a site to a value, or add it, in every row of a run: a row is a prompt, or one of its copies.

    A site with heads needs `head`, a (layer, head) or a list of them; `resid`, `resid_mid` (between attention and MLP)
    and `mlp_out` need `layer`, and `logits` neither. `at` is a position or a list; for `scores` and `pattern` it is
    that of the query. A position is a name, if prompts with names are run (`rebinding.Recording`), or an index, from
    the end if it is negative. Where rows differ, `at` is a tensor (row, position) and `head` a tensor (row, head, 2) of
    (layer, head), whose columns lie in one layer each (`in_layer`).

    `value` is a number, a tensor in the shape that `Read` returns for the same `head` and `at` (or one that broadcasts
    to it), or a `rebinding.Recording`: then each prompt gets what this site has there in the recorded prompt of the
    same number. In runs of a Recording it may be a function, such as `lambda z: 2 * z`: it gets the unedited values
    there, (prompt, head, position, width) with every axis, and stands alone in its run. A number for `scores` or
    `pattern` goes to the keys that the query can see. `scope` is needed at `k` and `v`: `"head"` changes what one query
    head sees (`head` counts query heads), `"group"` the whole KV group (`head` counts KV heads). `rows` are the rows
    that are edited (all by default): value and tables have one line for each of these. `where`, a mask in the shape of
    the value without its last axis, exempts the places where it is false.
    """

    site: Site
    value: Any
    at: At
    head: Heads | None = None
    layer: int | None = None
    mode: Mode = "set"
    scope: Scope | None = None
    rows: Index | None = None
    where: Tensor | None = None

    def __post_init__(self) -> None:
        _check_place(self)
        check_word("mode", self.mode, MODES)
        check_mask(self.where, f"an edit at {self.site}")
        if self.rows is not None:
            batch_rows(self.rows, f"an edit at {self.site}")

    def __repr__(self) -> str:
        value = f"tensor {tuple(self.value.shape)}" if isinstance(self.value, Tensor) else repr(self.value)
        place = f"layer={self.layer}" if self.head is None else f"head={self.head}"
        return f"Edit({self.site!r}, {value}, at={self.at!r}, {place}, mode={self.mode!r}, scope={self.scope!r})"


@dataclass(frozen=True, eq=False)
class Read:
    """Return a site at some positions of every row.

    The result is (row, head, position, width). The axis head or position is there only if `head` or `at` is a list or a
    tensor. `head`, `at`, `layer` and `scope` are as in `Edit`. `logits` are those of the whole vocabulary; `answers`
    those of the answer candidates of prompts that have some, the right one first. `reduce` is called with the values
    (row, [head,] position, width) of a few rows and the numbers of those rows, and what it returns (rows first) is kept
    instead, so a vocabulary of logits need not be kept.
    """

    site: ReadSite
    at: At = "readout"
    head: Heads | None = None
    layer: int | None = None
    scope: Scope | None = None
    reduce: Reduce | None = None

    def __post_init__(self) -> None:
        _check_place(self)


def in_layer(layer: int, heads: Index) -> Tensor:
    """Heads of one layer, one line for all rows or one line a row, as the `head` of an edit or a read."""
    table = index_table(heads, "heads")
    return torch.stack([torch.full_like(table, layer_number(layer)), table], dim=-1)  # (1 or row, head, 2)


def is_one_head(head: object) -> bool:
    """Whether this is one (layer, head) and no list of them."""
    return isinstance(head, (tuple, list)) and len(head) == 2 and not isinstance(head[0], (tuple, list))


def is_one_position(at: object) -> bool:
    """Whether this is one position and no list of them."""
    return isinstance(at, str) or (hasattr(at, "__index__") and not getattr(at, "ndim", 0))


def has_names(at: At) -> bool:
    """Whether positions are given by name."""
    return isinstance(at, str) or (isinstance(at, (list, tuple)) and any(isinstance(part, str) for part in at))


def head_table(head: Heads) -> Tensor:
    """One head or several as a table (1 or row, head, 2) of (layer, head)."""
    expected = "head must be (layer, head), a list of such pairs, or a tensor (row, head, 2)"
    pairs = head if isinstance(head, Tensor) or not is_one_head(head) else [head]
    try:
        table = integers(cast("Index", pairs), "head")
    except SurgeryError:
        raise SurgeryError(f"{expected}; got {reprlib.repr(head)}") from None
    table = table[None] if table.ndim == 2 else table
    if table.ndim != 3 or table.shape[-1] != 2 or not table.numel():
        raise SurgeryError(f"{expected}; got {reprlib.repr(head)}")
    return table


def _check_place(item: Edit | Read) -> None:
    """Refuse an unknown site, and heads, layers, positions or a scope that do not go with it."""
    site = item.site
    if site not in SITES and (site != "answers" or isinstance(item, Edit)):
        others = f"the sites are {', '.join(SITES)}, and to read, answers"
        raise SurgeryError(f"unknown site {site!r}{name_in_our_words(str(site))}; {others}")
    if site in AFTER_LAYERS:
        if item.head is not None or item.layer is not None:
            raise SurgeryError(f"{site} come after the last layer; leave head and layer out")
    elif site in HEADLESS:
        if item.layer is None or item.head is not None:
            raise SurgeryError(f"{site!r} has no heads: give layer=..., and no head")
        layer_number(item.layer)
    elif item.head is None or item.layer is not None:
        raise SurgeryError(f"{site!r} is per head: give head=(layer, head) or a list of such pairs, and no layer")
    else:
        head_table(item.head)
    if not has_names(item.at):
        integers(cast("Index", item.at), "positions")
    if (site in ("k", "v")) != (item.scope is not None):
        raise SurgeryError(
            f"site {site!r} with scope {item.scope!r}: k and v are edited and read with scope='group' (head counts KV "
            "heads) or scope='head' (one query head's copy); no other site takes a scope"
        )
    if item.scope is not None:
        check_word("scope", item.scope, SCOPES)


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
