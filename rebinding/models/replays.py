"""Check that a replay without a change equals the model's own forward, and that edits of every site have an effect.

A recording holds the keywords of every layer's call, its residual, keys and values. A replay lacks everything else: a
keyword that was not recorded, positions that a layer counts itself, computation between layers. So rows with an edit
too small to change a number are replayed from several layers and tokens. Their residuals are compared with those of the
model's own forward on its own attention, from the edited token to the last one. And noise at every place of a site must
change the output of the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.models.errors import UnsupportedArchitecture
from rebinding.models.layers import check_same
from rebinding.models.probe import Activations
from rebinding.models.rounding import Allowance, Difference, farthest_token, size
from rebinding.surgery import Anatomy, Edit, Read, Site, Surgeon, SurgeryError, TorchSurgeon
from rebinding.surgery.attention import UnknownAttention
from rebinding.surgery.recording import Recording
from rebinding.surgery.sites import HEADLESS, KEYED, SITES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NULL_SHIFT = 1e-30
"""Not zero, so that the row is computed; too small to change any sum of float32."""
TOKENS = 4
"""Tokens at the end of a prompt at which every site is edited."""


def check_replay(surgeon: TorchSurgeon, recording: Recording, own: Tensor, allowance: Allowance) -> None:
    """`own` (row, token, hidden) is the model's own final residual for the one prompt that was recorded."""
    for (layer, first), difference in compare_replays(surgeon, recording, own, allowance):
        where = f"{type(surgeon.model).__name__}: replayed from layer {layer}, token {first}, without a change, it"
        check_same(where, difference, "its own forward", first)


def compare_replays(
    surgeon: TorchSurgeon, recording: Recording, own: Tensor, allowance: Allowance
) -> Iterator[tuple[tuple[int, int], Difference]]:
    """The largest difference of the replay's residual for each start; tokens are counted from the start."""
    for layer, first in starts(surgeon.anatomy.n_layers, recording.length):
        actual = replay_from(surgeon, recording, layer, first)
        yield (layer, first), farthest_token(actual, own[:, first:].to(actual.device), allowance)


def starts(n_layers: int, length: int) -> list[tuple[int, int]]:
    """The (layer, token) where replays start: low, middle and high layers, early and late tokens."""
    last, end = n_layers - 1, length - 1
    return list(dict.fromkeys([(0, end // 2), (0, 1), (n_layers // 2, 1), (n_layers // 2, end - 1), (last, end // 3)]))


def replay_from(surgeon: TorchSurgeon, recording: Recording, layer: int, first: int) -> Tensor:
    """Final residuals (row, token, hidden) of a null edit, from its token to the last one."""
    edit = Edit("resid", layer, torch.tensor([NULL_SHIFT]), positions=[first], mode="add")
    read = Read("resid", surgeon.anatomy.n_layers, positions=range(first, recording.length))
    (resid,) = surgeon.run(recording, [edit], [read], allow_noop=True)
    return resid


@contextmanager
def layer_by_layer(model: PreTrainedModel) -> Iterator[None]:
    """Turn errors of running layers one by one into `UnsupportedArchitecture`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (SurgeryError, UnknownAttention, RuntimeError, TypeError, LookupError, AttributeError) as error:
        raise UnsupportedArchitecture(
            f"the layers of {type(model).__name__} cannot be run one by one ({error}), which every replay does. "
            "Support for its calls would have to be added to rebinding/surgery/recording.py."
        ) from error


def inert_sites(
    surgeon: Surgeon,
    recording: Recording,
    sizes: Callable[[Site, int], float],
    allowance: Allowance,
    layers: Callable[[Anatomy, Site], list[int]] | None = None,
) -> list[Site]:
    """Sites where noise at every head of `layers` (by default `edited_layers`) and the last tokens does not change the
    last residual.

    One batch: one row per site, and one unedited row.
    """
    anatomy, sites = surgeon.anatomy, [site for site in SITES if site != "logits"]
    edits = [
        _noise(anatomy, site, layer, row, recording.length, sizes(site, layer))
        for row, site in enumerate(sites, start=1)
        for layer in (layers or edited_layers)(anatomy, site)
    ]
    read = Read("resid", anatomy.n_layers, positions=_last(recording.length))
    source = torch.zeros(len(sites) + 1, dtype=torch.long)
    (resid,) = surgeon.run(recording, edits, [read], source=source)  # (row, token, hidden)
    changes = [_relative_change(row, resid[0]) for row in resid[1:]]
    return [site for site, change in zip(sites, changes, strict=True) if not change > allowance.relative]


def edited_layers(anatomy: Anatomy, site: Site) -> list[int]:
    """The first, the middle and the last layer that has a site."""
    having = [
        parts.number
        for parts in anatomy.parts
        if site in HEADLESS or (parts.has_own_keys if site in ("k", "v") else parts.n_heads)
    ]
    return sorted({having[0], having[len(having) // 2], having[-1]})


def _relative_change(row: Tensor, reference: Tensor) -> float:
    """The mean relative change of the dimensions of a residual, each at most 1.

    Planted and trained models have dimensions a thousand times larger than others, which would hide any change.
    """
    change_size, dimension_size = (
        (value.float().square().mean(dim=0).sqrt()) for value in (row - reference, reference)
    )  # (hidden)
    return float((change_size / dimension_size.clamp(min=torch.finfo(dimension_size.dtype).tiny)).clamp(max=1).mean())


def _noise(anatomy: Anatomy, site: Site, layer: int, row: int, length: int, size: float) -> Edit:
    grouped, parts = site in ("k", "v"), anatomy.parts[layer]
    heads = None if site in HEADLESS else list(range(parts.n_kv_heads if grouped else parts.n_heads))
    width = length if site in KEYED else anatomy.width(site) if heads is None else parts.head_dim
    tokens = _last(length)
    shape = (1, len(tokens), width) if heads is None else (1, len(heads), len(tokens), width)
    dice = torch.Generator().manual_seed(row * anatomy.n_layers + layer)
    return Edit(
        site,
        layer,
        size * torch.randn(shape, generator=dice),
        positions=tokens,
        heads=heads,
        rows=[row],
        mode="add",
        scope="group" if grouped else None,
    )


def _last(length: int) -> list[int]:
    return list(range(max(0, length - TOKENS), length))


def size_at(activations: Activations, anatomy: Anatomy, site: Site, layer: int) -> float:
    """One plus the root mean square of a site's values; 1 for scores and patterns."""
    if site in KEYED:
        return 1.0
    name = "resid" if site in HEADLESS else {"q_rot": "q", "k_rot": "k", "v_seen": "v"}.get(site, site)
    layer = anatomy.parts[layer].key_layer if name in ("k", "v") else layer
    return 1.0 + size(activations.modules[layer, name])
