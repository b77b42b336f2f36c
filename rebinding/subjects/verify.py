"""What an anatomy says about a model, held against one run of it.

| claim | how it is seen |
|---|---|
| windows | a score is masked exactly where its key lies after the query, or outside the layer's window |
| `q`, `k`, `v` | the slices cover the outputs of their modules; values arrive at attention as the slice of `v`; |
|   | so do queries and keys at the first token, which RoPE only scales, unless a norm stands between |
| `z` | what attention returns is what the output projection reads |
| head | the logits are `anatomy.logits` of the input of the final norm |
| norms | `attention_input`, `attention_write` and `mlp_write` rebuild every layer's output |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.subjects.errors import UnsupportedArchitecture
from rebinding.subjects.probe import Watched
from rebinding.surgery.anatomy import Anatomy, Projection

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_anatomy(model: PreTrainedModel, anatomy: Anatomy, seen: Watched, *, rounding: int) -> Anatomy:
    """The anatomy, with `norms` set to unknown if they do not rebuild the layers; an error for any other false claim.

    Slices and masks hold exactly. Where something is computed again, `rounding` units in the last place are allowed.
    """
    for layer in range(anatomy.n_layers):
        _check_mask(model, anatomy, seen, layer)
        _check_slices(model, anatomy, seen, layer, rounding)
        _check_z(model, seen, layer)
    _check_head(model, anatomy, seen, rounding)
    return anatomy if norms_hold(model, anatomy, seen, rounding) else replace(anatomy, norms="unknown")


def _refuse(model: PreTrainedModel, what: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{type(model).__name__}: {what}. Its anatomy is derived wrongly: see rebinding/surgery/anatomy.py."
    )


def _check_mask(model: PreTrainedModel, anatomy: Anatomy, seen: Watched, layer: int) -> None:
    scores = seen.stages[layer, "scores"]  # (prompt, head, query, key)
    visible = scores > torch.finfo(scores.dtype).min / 2
    back = torch.arange(scores.shape[2])[:, None] - torch.arange(scores.shape[3])[None]  # (query, key)
    window = anatomy.windows[layer]
    expected = (back >= 0) & (back < (window if window is not None else scores.shape[3]))
    if not bool((visible.cpu() == expected).all()):
        raise _refuse(
            model, f"layer {layer} does not attend to all earlier tokens within a window of {window}, and only them"
        )


def _check_slices(model: PreTrainedModel, anatomy: Anatomy, seen: Watched, layer: int, rounding: int) -> None:
    parts: dict[str, Projection] = {"q": anatomy.q, "k": anatomy.k, "v": anatomy.v}
    for letter, part in parts.items():
        output = seen.modules[layer, letter]
        width = sum(other.stop - other.start for other in parts.values() if other.module == part.module)
        if output.shape[-1] != width:
            raise _refuse(
                model, f"{part.module} of layer {layer} puts out {output.shape[-1]} numbers a token, not {width}"
            )
    slices = {letter: _heads(seen.modules[layer, letter], part, anatomy) for letter, part in parts.items()}
    if not torch.equal(slices["v"], seen.stages[layer, "values"]):
        raise _refuse(
            model, f"the values in layer {layer} are not the {anatomy.v.start}:{anatomy.v.stop} of {anatomy.v.module}"
        )
    if anatomy.query_key_norms:
        return
    for letter, arrived in (("q", seen.stages[layer, "q_rot"]), ("k", seen.stages[layer, "keys"])):
        if not _proportional(slices[letter][:, :, 0], arrived[:, :, 0], rounding):
            raise _refuse(
                model, f"at the first token the {letter} of layer {layer} is not the slice of {parts[letter].module}"
            )


def _proportional(a: Tensor, b: Tensor, rounding: int) -> bool:
    """Equal up to one factor: some extended RoPE scales queries and keys by a constant."""
    factor = float((a * b).sum() / (a * a).sum().clamp(min=torch.finfo(a.dtype).tiny))
    return _near(a * factor, b, rounding)


def _heads(output: Tensor, part: Projection, anatomy: Anatomy) -> Tensor:
    heads: Tensor = output[..., part.start : part.stop].unflatten(-1, (-1, anatomy.head_dim)).transpose(1, 2)
    return heads


def _check_z(model: PreTrainedModel, seen: Watched, layer: int) -> None:
    z = seen.stages[layer, "z"].transpose(1, 2).flatten(2)  # (prompt, token, head x head_dim)
    entering = seen.modules[layer, "z"]
    if entering.shape != z.shape or not torch.equal(entering, z):
        raise _refuse(
            model, f"the output projection of layer {layer} does not read what attention returns (a gate, a norm?)"
        )


def _check_head(model: PreTrainedModel, anatomy: Anatomy, seen: Watched, rounding: int) -> None:
    with torch.no_grad():
        rebuilt = anatomy.logits(model, seen.modules[anatomy.n_layers, "resid"])
    if not _near(rebuilt, seen.logits, rounding):
        raise _refuse(
            model, "its logits are not its head on its final norm, with the factor and soft cap of its config"
        )


@torch.no_grad()
def norms_hold(model: PreTrainedModel, anatomy: Anatomy, seen: Watched, rounding: int) -> bool:
    """Whether the norm layout rebuilds every layer from its parts."""
    if anatomy.norms == "unknown":
        return False
    for number, layer in enumerate(anatomy.layer_modules(model)):
        resid = seen.modules[number, "resid"]
        try:
            entering = anatomy.attention_input(layer, resid)
            middle = resid + anatomy.attention_write(layer, seen.modules[number, "attended"])
            leaving = middle + anatomy.mlp_write(layer, middle)
        except (AttributeError, TypeError):  # no such norm; or an MLP that returns more than its output
            return False
        if not _near(entering, seen.modules[number, "read"], rounding):
            return False
        if not _near(leaving, seen.modules[number, "written"], rounding):
            return False
    return True


def _near(a: Tensor, b: Tensor, rounding: int) -> bool:
    if a.shape != b.shape:
        return False
    return float((a - b).abs().max()) <= rounding * torch.finfo(b.dtype).eps * float(b.abs().max())
