"""What to change and what to return, by names: sites, heads as (layer, head), positions by name or index."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from rebinding.api.masks import within_mask
from rebinding.api.prompts import Position, Prompts
from rebinding.surgery import sites as surgery
from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.sites import (
    HEADLESS,
    KEYED,
    MODES,
    SITES,
    Mode,
    Scope,
    Site,
    SurgeryError,
    check_scope,
    check_word,
)

if TYPE_CHECKING:
    from rebinding.api.recording import Recording

Head: TypeAlias = tuple[int, int]
"""(layer, head), both from 0."""
ReadSite: TypeAlias = Site | Literal["answers"]
AFTER_LAYERS = ("logits", "answers")


@dataclass(frozen=True, eq=False)
class Edit:
    """Set a site to a value, or add it, in every prompt of a run.

    `site` is one of `resid`, `q`, `k`, `v`, `q_rot`, `k_rot`, `v_seen`, `scores`, `pattern`, `z`, `mlp_out`. A site
    with heads needs `head`, a (layer, head) or a list of them; `resid` and `mlp_out` need `layer`. `resid` of layer L
    is the input of layer L; `n_layers` is the input of the final norm. `q`, `k` and `v` are what the projections put
    out. `q_rot` is the query after its norm and rotation; `k_rot` and `v_seen` are the key (likewise) and the value
    that one query head sees. `at` is a position by name or index, or a list; for `scores` and `pattern` it is that of
    the query.

    `value` is a number, a tensor in the shape that `Read` returns for the same `head` and `at` (or one that broadcasts
    to it), or a `Recording`: then each prompt gets what this site has there in the recorded prompt of the same number.
    A number for `scores` or `pattern` goes to the keys that the query can see; a value that opens a masked key is
    refused. `scope` is needed at `k` and `v`: `"head"` changes what one query head sees (`head` counts query heads),
    `"group"` the whole KV group (`head` counts KV heads).
    """

    site: Site
    value: float | Tensor | Recording
    at: Position | Sequence[Position]
    head: Head | Sequence[Head] | None = None
    layer: int | None = None
    mode: Mode = "set"
    scope: Scope | None = None

    def __post_init__(self) -> None:
        if self.site in AFTER_LAYERS:
            raise SurgeryError(f"{self.site} can be read and not edited; edit 'resid' at the last layers instead")
        _check_place(self.site, self.head, self.layer)
        check_scope(self.site, self.scope)
        check_word("mode", self.mode, MODES)
        if isinstance(self.value, (Tensor, int, float)):
            check_finite(torch.as_tensor(self.value), self.site)

    def __repr__(self) -> str:
        value = f"tensor {tuple(self.value.shape)}" if isinstance(self.value, Tensor) else repr(self.value)
        place = f"layer={self.layer}" if self.head is None else f"head={self.head}"
        return f"Edit({self.site!r}, {value}, at={self.at!r}, {place}, mode={self.mode!r}, scope={self.scope!r})"


@dataclass(frozen=True, eq=False)
class Read:
    """Return a site at some positions of every prompt.

    The result is (prompt, head, position, width). The axis head or position is there only if `head` or `at` is a list.
    Besides the sites of `Edit`, `logits` are those of the whole vocabulary, and `answers` those of the prompts' answer
    candidates, the right one first; both take neither `head` nor `layer`. `scope` is needed at `k` and `v`, as in
    `Edit`: it says whether `head` counts query heads or KV heads.
    """

    site: ReadSite
    at: Position | Sequence[Position] = "readout"
    head: Head | Sequence[Head] | None = None
    layer: int | None = None
    scope: Scope | None = None

    def __post_init__(self) -> None:
        if self.site not in AFTER_LAYERS:
            _check_place(self.site, self.head, self.layer)
            check_scope(cast(Site, self.site), self.scope)
        elif self.head is not None or self.layer is not None:
            raise SurgeryError(f"{self.site} come after the last layer; leave head and layer out")


def check_finite(value: Tensor, site: str) -> None:
    """Refuse NaN and infinities; a score of minus infinity closes a key."""
    allowed = torch.isfinite(value) | (value == -math.inf) if site == "scores" else torch.isfinite(value)
    if not bool(allowed.all()):
        raise SurgeryError("the value has NaN or an infinity; every number after the edit would be NaN")


def _check_place(site: str, head: Head | Sequence[Head] | None, layer: int | None) -> None:
    if site not in SITES:
        names = ", ".join(name for name in SITES if name != "logits")
        raise SurgeryError(f"unknown site {site!r}; the sites are {names}, and to read, logits and answers")
    if site in HEADLESS and (layer is None or head is not None):
        raise SurgeryError(f"{site!r} has no heads: give layer=..., and no head")
    if site not in HEADLESS and (head is None or layer is not None):
        raise SurgeryError(f"{site!r} is per head: give head=(layer, head) or a list of such pairs, and no layer")


def is_one_head(head: Any) -> bool:
    """Whether this is one (layer, head) and no list of them."""
    return isinstance(head, (tuple, list)) and len(head) == 2 and not isinstance(head[0], (tuple, list))


def head_list(head: Head | Sequence[Head]) -> list[Head]:
    """One head or several as a list of plain integers."""
    pairs = cast("list[Head]", [head] if is_one_head(head) else head)
    try:
        heads = [(operator.index(layer), operator.index(number)) for layer, number in pairs]
    except (TypeError, ValueError):
        heads = []
    if not heads:
        raise SurgeryError(f"head must be (layer, head), or a list of such pairs; got {head!r}")
    return heads


def heads_by_layer(heads: Sequence[Head], anatomy: Anatomy, *, of_group: bool = False) -> dict[int, list[int]]:
    """Heads by layer, in order; a head that does not exist is refused. `of_group`: they are KV heads."""
    counts, kind = (
        [part.n_kv_heads if of_group else part.n_heads for part in anatomy.parts],
        "KV heads" if of_group else "heads",
    )
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        if not (0 <= layer < anatomy.n_layers and 0 <= head < counts[layer]):
            raise SurgeryError(
                f"there is no head ({layer}, {head}): the model has layers 0 to {anatomy.n_layers - 1} and {kind} 0 to"
                f" {max(counts) - 1} in each{_exceptions(counts)}; a head is (layer, head)"
            )
        by_layer.setdefault(layer, []).append(head)
    return by_layer


def _exceptions(counts: Sequence[int]) -> str:
    """The layers without heads, in words."""
    without = [str(layer) for layer, count in enumerate(counts) if count == 0]
    return f" but none in layers {', '.join(without)}" if without else ""


def is_one_position(at: Any) -> bool:
    """Whether this is one position and no list of them."""
    return isinstance(at, str) or hasattr(at, "__index__")


def table_of(prompts: Prompts, at: Position | Sequence[Position]) -> Tensor:
    """Positions as indices (prompt, position)."""
    positions = list(at) if isinstance(at, Sequence) and not isinstance(at, str) else [at]
    if not positions:
        raise SurgeryError("at is an empty list; give a position by name or index")
    return torch.stack([prompts.at(position) for position in positions], dim=1)


def layer_of(edit: Edit | Read, anatomy: Anatomy) -> int:
    """The layer of a site without heads. The residual stream has one more: the input of the final norm."""
    last = anatomy.n_layers - (edit.site != "resid")
    try:
        layer = operator.index(cast(int, edit.layer))
    except TypeError:
        raise SurgeryError(f"layer must be an integer; got {edit.layer!r}") from None
    if not 0 <= layer <= last:
        raise SurgeryError(f"there is no layer {layer}: {edit.site!r} has layers 0 to {last} in this model")
    return layer


def surgery_edits(edit: Edit, recording: Recording) -> Iterator[surgery.Edit]:
    """The edit, layer by layer."""
    positions, anatomy = table_of(recording.prompts, edit.at), recording.model.anatomy
    value = _value(edit, recording)  # (prompt, head, position, width), or what broadcasts to it
    if edit.site in HEADLESS:
        layer = layer_of(edit, anatomy)
        yield surgery.Edit(edit.site, layer, value, positions=positions, mode=edit.mode)
        return
    heads = head_list(cast(Head, edit.head))
    for layer, numbers in heads_by_layer(heads, anatomy, of_group=edit.scope == "group").items():
        places = [place for place, (own, _) in enumerate(heads) if own == layer]
        part = value[:, places] if value.ndim == 4 and value.shape[1] > 1 else value
        if edit.site in KEYED:
            part = within_mask(part, edit, recording.recorded, layer, positions)
        yield surgery.Edit(edit.site, layer, part, positions=positions, heads=numbers, mode=edit.mode, scope=edit.scope)


def _value(edit: Edit, recording: Recording) -> Tensor:
    """The value of an edit, with all axes."""
    from rebinding.api.recording import Recording

    value = edit.value
    if isinstance(value, Recording):
        return value.value_for(edit, recording)
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value, dtype=torch.float32)
        except (TypeError, ValueError, RuntimeError):
            raise SurgeryError(
                f"value must be a number, a tensor or a Recording; got a {type(edit.value).__name__}"
            ) from None
        check_finite(value, edit.site)
    return with_all_axes(value, edit)


def with_all_axes(value: Tensor, edit: Edit) -> Tensor:
    """A value in the shape that a read returns, with the axes of a single head and a single position put in."""
    names = ["prompt"]
    names += [] if edit.site in HEADLESS or is_one_head(edit.head) else ["head"]
    names += [] if is_one_position(edit.at) else ["position"]
    names += ["width"]
    if value.ndim > len(names):
        raise SurgeryError(
            f"the value has shape {tuple(value.shape)}; this edit takes ({', '.join(names)}), as a Read with the"
            " same head and at returns it, or what broadcasts to it"
        )
    if value.ndim == 0:
        return value
    value = value.reshape((1,) * (len(names) - value.ndim) + tuple(value.shape))
    if is_one_position(edit.at):
        value = value.unsqueeze(-2)
    return value.unsqueeze(1) if edit.site not in HEADLESS and is_one_head(edit.head) else value
