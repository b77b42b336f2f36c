"""Edits of scores and patterns keep masked keys closed: later tokens, and those outside of a sliding window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.surgery.recording import Recording
from rebinding.surgery.sites import SurgeryError

if TYPE_CHECKING:
    from rebinding.api.edits import Edit


def within_mask(value: Tensor, edit: Edit, recording: Recording, layer: int, positions: Tensor) -> Tensor:
    """The value of an edit of one layer's scores or pattern at query positions (prompt, position).

    A number goes to visible keys only. A value for every key (prompt, head, position, key) is refused if it opens a
    masked key, or closes all.
    """
    mask = recording.calls[layer]["attention_mask"][0, 0].cpu()  # (query, key)
    closed = torch.finfo(mask.dtype).min
    is_visible = (mask > closed / 2)[positions][:, None]  # (prompt, 1, position, key)
    is_set_score = edit.site == "scores" and edit.mode == "set"
    value = value.to(mask)
    if value.ndim == 0 or value.shape[-1] == 1:
        value = torch.where(is_visible, value, mask.new_tensor(closed if is_set_score else 0.0))
    opens = value > closed / 2 if is_set_score else value != 0
    if edit.site == "scores" and edit.mode == "add":
        opens = torch.zeros_like(opens)  # a masked score stays masked
    if bool((opens & ~is_visible).any()):
        raise SurgeryError(
            f"the value of an edit at {edit.site!r}, layer {layer} opens keys that the query cannot see (later tokens,"
            f" or tokens outside of the window); give them {'torch.finfo(dtype).min' if is_set_score else '0'}, or give"
            " a number, which goes to visible keys only"
        )
    if edit.site == "scores" and bool(((value == -torch.inf) | ~is_visible).all(dim=-1).any()):
        raise SurgeryError(
            f"the scores of an edit at layer {layer} are minus infinity at every key, and a softmax over no key is NaN;"
            " leave one key open, or edit 'pattern'"
        )
    return value
