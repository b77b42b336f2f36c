"""Check an anatomy against one recorded run of the model.

| claim | check |
|---|---|
| windows | a score is masked exactly where its key lies after the query, or outside the layer's window |
| `q`, `k`, `v` | the slices cover the outputs of their modules; values arrive at attention as the slice of `v`; |
|   | so do queries and keys at the first token, after their norm if they have one, as RoPE only scales those |
| `z` | the output projection reads what attention returns |
| head | the logits are `anatomy.logits` of the input of the final norm |
| layers | each layer reads the output of the one before, and the final norm that of the last |
| norms | `attention_input`, `attention_write` and `mlp_write` rebuild every layer's output |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from rebinding.models.errors import UnsupportedArchitecture
from rebinding.models.probe import Activations
from rebinding.models.rounding import Allowance, raise_weights
from rebinding.surgery.anatomy import Anatomy, Projection
from rebinding.surgery.recording import Recording
from rebinding.surgery.sites import Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel

STAGES: tuple[Site, ...] = ("q_rot", "scores", "z")
"""Sites that must be recorded, besides those that always are."""
Stages: TypeAlias = dict[str, Tensor]
"""Stages of attention at one layer."""


def check_anatomy(
    model: PreTrainedModel,
    anatomy: Anatomy,
    own: Activations,
    activations: Activations,
    recording: Recording,
    allowance: Allowance,
) -> Anatomy:
    """The anatomy, with `norms` set to unknown if they do not rebuild the layers; an error for any other false claim.

    `own` is a run on the model's own attention, `activations` the recorded one. Copies of the same memory must be equal
    to the bit, recomputed values up to rounding.
    """
    one_layer = allowance.one_layer
    for layer in range(anatomy.n_layers):
        stages = {site: values[layer] for site, values in recording.sites.items() if site != "resid"}
        _check_mask(model, anatomy, stages, layer)
        _check_slices(model, anatomy, activations, stages, layer, one_layer)
        _check_z(model, activations, stages, layer)
    _check_head(model, anatomy, own, one_layer)
    _check_chain(model, anatomy, activations)
    return anatomy if norms_hold(model, anatomy, activations, one_layer) else replace(anatomy, norms="unknown")


def _refuse(model: PreTrainedModel, what: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{type(model).__name__}: {what}. Its anatomy is derived wrongly: see rebinding/surgery/anatomy.py."
    )


def _check_mask(model: PreTrainedModel, anatomy: Anatomy, stages: Stages, layer: int) -> None:
    scores = stages["scores"]  # (prompt, head, query, key)
    visible = scores > torch.finfo(model.dtype).min / 2
    back = torch.arange(scores.shape[2])[:, None] - torch.arange(scores.shape[3])[None]  # (query, key)
    window = anatomy.windows[layer]
    expected = (back >= 0) & (back < (window if window is not None else scores.shape[3]))
    if not bool((visible.cpu() == expected).all()):
        raise _refuse(
            model, f"layer {layer} does not attend to all earlier tokens within a window of {window}, and only them"
        )


def _check_slices(
    model: PreTrainedModel, anatomy: Anatomy, activations: Activations, stages: Stages, layer: int, allowance: Allowance
) -> None:
    parts: dict[str, Projection] = {"q": anatomy.q, "k": anatomy.k, "v": anatomy.v}
    for letter, part in parts.items():
        output = activations.modules[layer, letter]
        width = sum(peer.stop - peer.start for peer in parts.values() if peer.module == part.module)
        if output.shape[-1] != width:
            raise _refuse(
                model, f"{part.module} of layer {layer} puts out {output.shape[-1]} numbers a token, not {width}"
            )
    slices = {letter: _heads(activations.modules[layer, letter], part, anatomy) for letter, part in parts.items()}
    if not torch.equal(slices["v"], stages["values"]):
        raise _refuse(
            model, f"the values in layer {layer} are not the {anatomy.v.start}:{anatomy.v.stop} of {anatomy.v.module}"
        )
    attention = anatomy.layer_modules(model)[layer].get_submodule(anatomy.attention)
    for letter, actual in (("q", stages["q_rot"]), ("k", stages["keys"])):
        with raise_weights(attention):
            expected = _normed(getattr(attention, f"{letter}_norm", None), slices[letter][:, :, 0])
        if not _proportional(expected, actual[:, :, 0], allowance):
            raise _refuse(
                model, f"at the first token the {letter} of layer {layer} is not the slice of {parts[letter].module}"
            )


@torch.no_grad()
def _normed(norm: Any, heads: Tensor) -> Tensor:
    """Queries or keys (prompt, head, head_dim) after their norm, of each head or of all of them together."""
    if norm is None:
        return heads
    is_per_head = norm.weight.shape[-1] == heads.shape[-1]
    out: Tensor = norm(heads if is_per_head else heads.flatten(1))
    return out if is_per_head else out.view_as(heads)


def _proportional(a: Tensor, b: Tensor, allowance: Allowance) -> bool:
    """Equal up to one factor: some extended RoPE scales queries and keys by a constant."""
    factor = float((a * b).sum() / (a * a).sum().clamp(min=torch.finfo(a.dtype).tiny))
    return allowance.near(a * factor, b)


def _heads(output: Tensor, part: Projection, anatomy: Anatomy) -> Tensor:
    heads: Tensor = output[..., part.start : part.stop].unflatten(-1, (-1, anatomy.head_dim)).transpose(1, 2)
    return heads


def _check_z(model: PreTrainedModel, activations: Activations, stages: Stages, layer: int) -> None:
    z = stages["z"].transpose(1, 2).flatten(2)  # (prompt, token, head x head_dim)
    projection_input = activations.modules[layer, "z"]
    if projection_input.shape != z.shape or not torch.equal(projection_input, z):
        raise _refuse(
            model, f"the output projection of layer {layer} does not read what attention returns (a gate, a norm?)"
        )


def _check_chain(model: PreTrainedModel, anatomy: Anatomy, activations: Activations) -> None:
    """Refuse a model that does not pass each layer's output unchanged to the next, as a replay does."""
    for layer in range(anatomy.n_layers):
        out, next_input = activations.modules[layer, "written"], activations.modules[layer + 1, "resid"]
        if not torch.equal(out.to(next_input.device), next_input):
            raise UnsupportedArchitecture(
                f"{type(model).__name__}: the output of layer {layer} is not the next layer's input: the model "
                "scales it or adds to it between its layers, which rebinding/surgery/replay.py does not support."
            )


def _check_head(model: PreTrainedModel, anatomy: Anatomy, activations: Activations, allowance: Allowance) -> None:
    with torch.no_grad():
        rebuilt = anatomy.logits(model, activations.modules[anatomy.n_layers, "resid"])
    if not allowance.near(rebuilt, activations.logits):
        raise _refuse(
            model, "its logits are not its head on its final norm, with the factor and soft cap of its config"
        )


@torch.no_grad()
def norms_hold(model: PreTrainedModel, anatomy: Anatomy, activations: Activations, allowance: Allowance) -> bool:
    """Whether the norm layout rebuilds every layer from its parts."""
    if anatomy.norms == "unknown":
        return False
    for number, layer in enumerate(anatomy.layer_modules(model)):
        resid = activations.modules[number, "resid"].to(
            activations.modules[number, "read"].device
        )  # the layer may be on another one
        try:
            with raise_weights(layer):
                attention_input = anatomy.attention_input(layer, resid)
                middle = resid + anatomy.attention_write(layer, activations.modules[number, "attended"])
                output = middle + anatomy.mlp_write(layer, middle)
        except (AttributeError, TypeError):  # no such norm; or an MLP that returns more than its output
            return False
        if not allowance.near(attention_input, activations.modules[number, "read"]):
            return False
        if not allowance.near(output, activations.modules[number, "written"]):
            return False
    return True
