"""What to change and what to return, by names: sites, heads as (layer, head), positions by name or index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import torch
from torch import Tensor

from rebinding.api.prompts import Position, Prompts
from rebinding.surgery import sites as surgery
from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.checks import SurgeryError
from rebinding.surgery.sites import HEADLESS, Mode, Scope, Site, check_site

if TYPE_CHECKING:
    from rebinding.api.recording import Recording

Head: TypeAlias = tuple[int, int]
"""(layer, head), both from 0."""
ReadSite: TypeAlias = Site | Literal["answers"]


@dataclass(frozen=True, eq=False)
class Edit:
    """Set a site to a value, or add it, in every prompt of a run.

    `site` is one of `resid`, `q`, `k`, `v`, `q_rot`, `k_rot`, `v_seen`, `scores`, `pattern`, `z`, `mlp_out`. A site
    with heads needs `head`, a (layer, head) or a list of them; any other site needs `layer`. `at` is a position by name
    or index, or a list of them. `value` is a number, a tensor that broadcasts to (prompt, head, position, width), with
    no axis head where the site has none, or a `Recording`: then each prompt gets the value that this site has there in
    the recorded prompt of the same number. `scope` is needed at `k` and `v`: `"head"` changes what one query head sees
    (`head` counts query heads), `"group"` the whole KV group (`head` counts KV heads).
    """

    site: Site
    value: float | Tensor | Recording
    at: Position | Sequence[Position]
    head: Head | Sequence[Head] | None = None
    layer: int | None = None
    mode: Mode = "set"
    scope: Scope | None = None

    def __post_init__(self) -> None:
        _check_place(self.site, self.head, self.layer)


@dataclass(frozen=True, eq=False)
class Read:
    """Return a site at some positions of every prompt.

    The result is (prompt, head, position, width). The axis head or position is there only if `head` or `at` is a list.
    Besides the sites of `Edit`, `logits` are those of the whole vocabulary, and `answers` those of the prompts' answer
    candidates, the right one first; both take neither `head` nor `layer`.
    """

    site: ReadSite
    at: Position | Sequence[Position] = "readout"
    head: Head | Sequence[Head] | None = None
    layer: int | None = None

    def __post_init__(self) -> None:
        if self.site in ("logits", "answers"):
            if self.head is not None or self.layer is not None:
                raise SurgeryError(f"{self.site} come after the last layer; leave head and layer out")
        else:
            _check_place(self.site, self.head, self.layer)


def _check_place(site: str, head: Head | Sequence[Head] | None, layer: int | None) -> None:
    if site == "logits":
        raise SurgeryError("logits can be read and not edited; edit 'resid' at the last layers instead")
    if site in HEADLESS and (layer is None or head is not None):
        raise SurgeryError(f"{site!r} has no heads: give layer=..., and no head")
    check_site(site, None if head is None else 0)
    if site not in HEADLESS and layer is not None:
        raise SurgeryError(f"{site!r} is per head: give head=(layer, head), and no layer")


def heads_by_layer(heads: Sequence[Head], anatomy: Anatomy, site: str, scope: Scope | None) -> dict[int, list[int]]:
    """Heads by layer, in order; a head that does not exist is refused."""
    of_group = scope == "group" or (scope is None and site in ("k", "v"))
    count, kind = (anatomy.n_kv_heads, "KV heads") if of_group else (anatomy.n_heads, "heads")
    by_layer: dict[int, list[int]] = {}
    for layer, head in heads:
        if not (0 <= layer < anatomy.n_layers and 0 <= head < count):
            raise SurgeryError(
                f"there is no head ({layer}, {head}): the model has layers 0 to {anatomy.n_layers - 1} and {kind} 0 to"
                f" {count - 1} in each; a head is (layer, head)"
            )
        by_layer.setdefault(layer, []).append(head)
    return by_layer


def head_list(head: Head | Sequence[Head]) -> list[Head]:
    """One head or several as a list."""
    if not isinstance(head, (tuple, list)) or not head:
        raise SurgeryError(f"head must be (layer, head), or a list of such pairs; got {head!r}")
    pairs = [head] if isinstance(head[0], int) else list(head)
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        raise SurgeryError(f"head must be (layer, head), or a list of such pairs; got {head!r}")
    return cast("list[Head]", pairs)


def position_list(at: Position | Sequence[Position]) -> list[Position]:
    """One position or several as a list."""
    return [at] if isinstance(at, (str, int)) else list(at)


def table_of(prompts: Prompts, at: Position | Sequence[Position]) -> Tensor:
    """Positions as indices (prompt, position)."""
    return torch.stack([prompts.at(position) for position in position_list(at)], dim=1)


def surgery_edits(edit: Edit, recording: Recording, rows: Tensor) -> Iterator[surgery.Edit]:
    """The edit, layer by layer, in rows (prompt,) of a batch."""
    positions = table_of(recording.prompts, edit.at)
    if edit.site in HEADLESS:
        assert edit.layer is not None
        check_layer(edit.layer, recording.model.anatomy, edit.site)
        value = _value(edit, edit.layer, None, recording)
        yield surgery.Edit(edit.site, edit.layer, value, positions=positions, rows=rows, mode=edit.mode)
        return
    assert edit.head is not None
    heads = head_list(edit.head)
    for layer, numbers in heads_by_layer(heads, recording.model.anatomy, edit.site, edit.scope).items():
        places = [place for place, (at, _) in enumerate(heads) if at == layer]
        value = _value(edit, layer, numbers, recording, places, len(heads))
        yield surgery.Edit(
            edit.site, layer, value, positions=positions, heads=numbers, rows=rows, mode=edit.mode, scope=edit.scope
        )


def check_layer(layer: int, anatomy: Anatomy, site: str) -> None:
    """Refuse a layer that does not exist. The residual stream has one more: the input of the final norm."""
    last = anatomy.n_layers - (site != "resid")
    if not 0 <= layer <= last:
        raise SurgeryError(f"there is no layer {layer}: {site!r} has layers 0 to {last} in this model")


def _value(
    edit: Edit,
    layer: int,
    heads: list[int] | None,
    recording: Recording,
    places: list[int] | None = None,
    count: int = 0,
) -> Tensor:
    """The value of an edit in one layer, (prompt, head, position, width)."""
    from rebinding.api.recording import Recording

    if isinstance(edit.value, Recording):
        return edit.value.value_for(edit, layer, heads, recording)
    if not isinstance(edit.value, Tensor):
        return torch.tensor(float(edit.value))
    value = edit.value
    if heads is not None and value.ndim >= 3 and value.shape[-3] == count > 1:
        return value[..., places, :, :]
    return value
