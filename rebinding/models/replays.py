"""A replay of an edit that changes nothing has to give the model's own numbers, at every token; any other edit, others.

What a replay repeats is written down when a prompt is recorded: the keywords of every layer's call, its residual, keys
and values. Whatever else a layer depends on, a replay lacks: a keyword that was not recorded, positions that a layer
counts for itself in the tokens that it gets, what the model does between its layers. So rows are replayed whose edit is
too small to change a number, from several layers and tokens. Their residuals are compared with those of the model's own
forward on its own attention, from the edited token to the last one. And noise at every place of a site has to move what
the last layer puts out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.models.errors import UnsupportedArchitecture
from rebinding.models.layers import check_same
from rebinding.models.probe import Watched
from rebinding.models.rounding import Allowance, Difference, farthest_token, size
from rebinding.surgery import Anatomy, Edit, Read, Site, Surgeon, SurgeryError, TorchSurgeon
from rebinding.surgery.attention import UnknownAttention
from rebinding.surgery.recording import Recording
from rebinding.surgery.sites import HEADLESS, KEYED, SITES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NULL_SHIFT = 1e-30
"""Not zero, so that the row is computed, and lost in any sum of float32."""
TOKENS = 4
"""Tokens at the end of a prompt at which every site is edited."""


def check_replay(surgeon: TorchSurgeon, recording: Recording, own: Tensor, allowance: Allowance) -> None:
    """`own` (row, token, hidden) is the model's own final residual for the one prompt that was recorded."""
    for (layer, first), difference in compare_replays(surgeon, recording, own, allowance):
        where = f"{type(surgeon.model).__name__}: run again from layer {layer}, token {first}, with nothing changed, it"
        check_same(where, difference, "its own forward", first)


def compare_replays(
    surgeon: TorchSurgeon, recording: Recording, own: Tensor, allowance: Allowance
) -> Iterator[tuple[tuple[int, int], Difference]]:
    """For each start where the replay's residual is farthest off; tokens are counted from the start's."""
    for layer, first in starts(surgeon.anatomy.n_layers, recording.length):
        replayed = replay_from(surgeon, recording, layer, first)
        yield (layer, first), farthest_token(replayed, own[:, first:].to(replayed.device), allowance)


def starts(n_layers: int, length: int) -> list[tuple[int, int]]:
    """The (layer, token) from which rows are run again: below and above every layer, from early and late tokens."""
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
    """What goes wrong when layers are run one by one is a refusal, not a traceback."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (SurgeryError, UnknownAttention, RuntimeError, TypeError, LookupError, AttributeError) as error:
        raise UnsupportedArchitecture(
            f"the layers of {type(model).__name__} cannot be run one by one ({error}), which every replay does. Its "
            "way of calling them would have to be added to rebinding/surgery/recording.py."
        ) from error


def inert_sites(
    surgeon: Surgeon,
    recording: Recording,
    layers: Sequence[int],
    sizes: Callable[[Site, int], float],
    allowance: Allowance,
) -> list[Site]:
    """Sites at which noise of some size at every head of these layers and the last tokens leaves the last residual.

    One batch: a row a site, and one row left alone.
    """
    anatomy, sites = surgeon.anatomy, [site for site in SITES if site != "logits"]
    edits = [
        _noise(anatomy, site, layer, row, recording.length, sizes(site, layer))
        for row, site in enumerate(sites, start=1)
        for layer in layers
    ]
    read = Read("resid", anatomy.n_layers, positions=_last(recording.length))
    source = torch.zeros(len(sites) + 1, dtype=torch.long)
    (resid,) = surgeon.run(recording, edits, [read], source=source)  # (row, token, hidden)
    moves = [_moved(row, resid[0]) for row in resid[1:]]
    return [site for site, move in zip(sites, moves, strict=True) if not move > allowance.relative]


def _moved(row: Tensor, still: Tensor) -> float:
    """How far the dimensions of a residual moved on average, each by its own measure and by 1 at the most.

    Planted models and trained ones have dimensions a thousand times larger than others, beside which nothing moves.
    """
    by, of = ((value.float().square().mean(dim=0).sqrt()) for value in (row - still, still))  # (hidden)
    return float((by / of.clamp(min=torch.finfo(of.dtype).tiny)).clamp(max=1).mean())


def _noise(anatomy: Anatomy, site: Site, layer: int, row: int, length: int, size: float) -> Edit:
    grouped = site in ("k", "v")
    heads = None if site in HEADLESS else list(range(anatomy.n_kv_heads if grouped else anatomy.n_heads))
    width = length if site in KEYED else anatomy.hidden if heads is None else anatomy.head_dim
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


def size_at(ours: Watched, site: Site, layer: int) -> float:
    """One more than the root mean square of what stands at a site; scores and patterns have sizes of their own."""
    if site in KEYED:
        return 1.0
    what = "resid" if site in HEADLESS else {"q_rot": "q", "k_rot": "k", "v_seen": "v"}.get(site, site)
    return 1.0 + size(ours.modules[layer, what])
