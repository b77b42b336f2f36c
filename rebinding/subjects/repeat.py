"""A replay of next to nothing has to give the model's own numbers.

What a replay repeats is written down when a prompt is recorded: the keywords of every layer's call, its residual, keys
and values. Whatever else a layer depends on, a replay lacks: a keyword that was not recorded, positions that a layer
counts for itself in the tokens that it gets, what the model does between its layers. So rows are replayed whose edit is
too small to change a number, from the first layer with half of the prompt, and from the middle layer with all but its
first token, and their logits are held against those of the model's own forward on its own attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.subjects.allowance import Allowance, size
from rebinding.subjects.errors import ReplayDiffers, UnsupportedArchitecture
from rebinding.surgery import Edit, Read, SurgeryError, TorchSurgeon
from rebinding.surgery.attention import UnknownAttention
from rebinding.surgery.recording import Recording

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOTHING = 1e-30
"""Not zero, so that the row is computed, and lost in any sum of float32."""


def check_replay(surgeon: TorchSurgeon, recording: Recording, logits: Tensor, allowance: Allowance) -> None:
    """`logits` (token, vocabulary) are the model's own, for the one prompt that was recorded."""
    model, anatomy, last = surgeon.model, surgeon.anatomy, recording.length - 1
    places = starts(anatomy.n_layers, recording.length)
    found = replayed(surgeon, recording, places)
    allowed = allowance.of(logits[last])
    for (layer, token), row in zip(places, found, strict=True):
        off = size(row - logits[last])
        if not off <= allowed:
            raise ReplayDiffers(
                f"{type(model).__name__}: run again from layer {layer}, token {token}, with nothing changed, its "
                f"logits are off by {off:.2g} from its own forward (allowed: {allowed:.2g}). Its layers depend on "
                "something that a replay does not give them as the model does: a keyword, or positions that a layer "
                "counts for itself. What is kept of a layer's call is decided in rebinding/surgery/recording.py."
            )


def starts(n_layers: int, length: int) -> list[tuple[int, int]]:
    """The (layer, token) from which rows are run again."""
    return [(0, (length - 1) // 2), (n_layers // 2, 1)]


def replayed(surgeon: TorchSurgeon, recording: Recording, places: Sequence[tuple[int, int]]) -> Tensor:
    """Logits (row, vocabulary) at the end of a prompt, a row run again from each (layer, token)."""
    edits = [
        Edit("resid", layer, torch.tensor([NOTHING]), positions=[token], rows=[row], mode="add")
        for row, (layer, token) in enumerate(places)
    ]
    read = Read("logits", positions=[recording.length - 1])
    source = torch.zeros(len(places), dtype=torch.long)
    (logits,) = surgeon.run(recording, edits, [read], source=source)
    return logits[:, 0]


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
