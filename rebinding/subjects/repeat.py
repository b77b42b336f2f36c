"""A replay of an edit that changes nothing has to give the model's own numbers, at every token.

What a replay repeats is written down when a prompt is recorded: the keywords of every layer's call, its residual, keys
and values. Whatever else a layer depends on, a replay lacks: a keyword that was not recorded, positions that a layer
counts for itself in the tokens that it gets, what the model does between its layers. So rows are replayed whose edit is
too small to change a number, from several layers and tokens. Their residuals are compared with those of the model's own
forward on its own attention, from the edited token to the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.subjects.allowance import Allowance, farthest_token
from rebinding.subjects.errors import ReplayDiffers, UnsupportedArchitecture
from rebinding.surgery import Edit, Read, SurgeryError, TorchSurgeon
from rebinding.surgery.attention import UnknownAttention
from rebinding.surgery.recording import Recording

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NULL_SHIFT = 1e-30
"""Not zero, so that the row is computed, and lost in any sum of float32."""

LACKING = (
    "It depends on something that a replay does not give it as the model does: a keyword, positions that a layer "
    "counts for itself, or what another layer or an earlier call left behind. Its edits would not be exact. What is "
    "kept of a layer's call is decided in rebinding/surgery/recording.py."
)


def check_replay(surgeon: TorchSurgeon, recording: Recording, own: Tensor, allowance: Allowance) -> None:
    """`own` (row, token, hidden) is the model's own final residual for the one prompt that was recorded."""
    name = type(surgeon.model).__name__
    for (layer, first), token, off, allowed in compare_replays(surgeon, recording, own, allowance):
        if not off <= allowed:
            raise ReplayDiffers(
                f"{name}: run again from layer {layer}, token {first}, with nothing changed, its residual at token "
                f"{token} is off by {off:.2g} from its own forward (allowed: {allowed:.2g}). {LACKING}"
            )


def compare_replays(
    surgeon: TorchSurgeon, recording: Recording, own: Tensor, allowance: Allowance
) -> Iterator[tuple[tuple[int, int], int, float, float]]:
    """For each start the token at which the replay is farthest off, how far it is, and how far it may be."""
    for layer, first in starts(surgeon.anatomy.n_layers, recording.length):
        replayed = replay_from(surgeon, recording, layer, first)
        token, off, allowed = farthest_token(replayed, own[:, first:].to(replayed.device), allowance)
        yield (layer, first), first + token, off, allowed


def starts(n_layers: int, length: int) -> list[tuple[int, int]]:
    """The (layer, token) from which rows are run again: below and above every layer, from early and late tokens."""
    last, end = n_layers - 1, length - 1
    return list(dict.fromkeys([(0, end // 2), (0, 1), (n_layers // 2, 1), (n_layers // 2, end - 1), (last, end // 3)]))


def replay_from(surgeon: TorchSurgeon, recording: Recording, layer: int, first: int) -> Tensor:
    """Final residuals (row, token, hidden) of a null edit, from its token to the last one."""
    edit = Edit("resid", layer, torch.tensor([NULL_SHIFT]), positions=[first], mode="add")
    read = Read("resid", surgeon.anatomy.n_layers, positions=range(first, recording.length))
    (resid,) = surgeon.run(recording, [edit], [read], allow_still=True)
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
