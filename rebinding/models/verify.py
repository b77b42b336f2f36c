"""Check an anatomy against one recorded run of the model.

| claim | check |
|---|---|
| windows | a score is masked exactly where its key lies after the query, or outside the layer's window |
| `q`, `k`, `v` | the slices cover the outputs of their modules; values arrive at attention as the slice of `v`; |
|   | so do queries and keys at the first token, after their norm if they have one, as RoPE only scales those |
| `z` | the output projection reads what attention returns |
| head | the logits are `anatomy.logits` of the input of the final norm |
| layers | each layer reads the output of the one before, and the final norm that of the last |
| shared keys | a layer that reuses keys and values attends to those of its `key_layer` |
| norms | one of the known layouts rebuilds every layer's output |
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.models.errors import UnsupportedArchitecture
from rebinding.models.probe import Allowance, ModuleActivations, raise_weights
from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.batch import normed
from rebinding.surgery.derivation import layouts
from rebinding.surgery.recording import RecordedRun
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
    own: ModuleActivations,
    activations: ModuleActivations,
    recording: RecordedRun,
    allowance: Allowance,
) -> Anatomy:
    """The anatomy, with the layout of norms that rebuilds every layer, or none; an error for any other false claim.

    `own` is a run on the model's own attention, `activations` the recorded one. Copies of the same memory must be equal
    to the bit, recomputed values up to rounding.
    """
    one_layer = allowance.one_layer
    layers = anatomy.layer_modules(model)
    for parts in anatomy.parts:
        if parts.n_heads:
            stages = {site: values[parts.number] for site, values in recording.sites.items() if site != "resid"}
            _check_mask(model, parts, stages)
            _check_projections(model, layers[parts.number], parts, activations, stages, one_layer)
            _check_z(model, parts, activations, stages)
            if parts.has_gate:
                _check_gate(model, parts, stages, one_layer)
    _check_shared_keys(model, anatomy, recording)
    _check_head(model, anatomy, own, one_layer)
    _check_chain(model, anatomy, activations)
    candidates = [anatomy.branches] if anatomy.branches is not None else []
    candidates += [] if anatomy.streams > 1 else list(layouts(layers[0], model.config.get_text_config()))
    for layout in candidates:
        variant = replace(anatomy, branches=layout)
        if norms_hold(model, variant, activations, one_layer):
            return variant
    return replace(anatomy, branches=None)


def _refuse(model: PreTrainedModel, what: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{type(model).__name__}: {what}. Its anatomy is derived wrongly: see rebinding/surgery/derivation.py."
    )


def _check_mask(model: PreTrainedModel, parts: LayerParts, stages: Stages) -> None:
    scores = stages["scores"]  # (prompt, head, query, key)
    visible = scores > torch.finfo(model.dtype).min / 2
    if not bool((visible.cpu() == parts.mask.visible(*scores.shape[2:])).all()):
        within = "all earlier tokens" if parts.mask.size is None else f"a {parts.mask.kind} window of {parts.mask.size}"
        raise _refuse(model, f"layer {parts.number} does not attend to {within}, and only them")


def _check_projections(
    model: PreTrainedModel,
    layer: nn.Module,
    parts: LayerParts,
    activations: ModuleActivations,
    stages: Stages,
    allowance: Allowance,
) -> None:
    """Refuse wrong slices of queries, keys and values."""
    letters = ("q", "k", "v") if parts.has_own_keys else ("q",)
    raw = {letter: _slice(model, parts, letter, activations) for letter in letters}
    attention: Any = layer.get_submodule(parts.attention)
    first = {letter: value[:, :, :1] for letter, value in raw.items()}  # RoPE only scales the first token
    with raise_weights(attention):
        for letter, actual in (("q", stages["q_rot"]), ("k", stages["keys"])):
            if letter in letters and not _proportional(
                _normed(attention, parts, letter, first[letter]), actual[:, :, :1], allowance
            ):
                module = parts.projection(letter).module
                raise _refuse(
                    model, f"at the first token the {letter} of layer {parts.number} is not the slice of {module}"
                )
        if "v" in letters:
            values, is_same = _normed(attention, parts, "v", raw["v"]), torch.equal
            if not (allowance.near(values, stages["values"]) if parts.v_norm else is_same(values, stages["values"])):
                part = parts.v
                raise _refuse(
                    model,
                    f"the values in layer {parts.number} are not the {part.start}:{part.stop} of {part.module}",
                )


def _slice(model: PreTrainedModel, parts: LayerParts, letter: str, activations: ModuleActivations) -> Tensor:
    """Queries, keys or values of a layer before their norm: (prompt, head, token, head_dim)."""
    part, value = parts.projection(letter), activations.modules[parts.number, letter].flatten(2)
    heads = parts.n_heads if letter == "q" else parts.n_kv_heads
    blocks, rest = divmod(value.shape[-1], part.width)
    if rest or blocks * (part.stop - part.start) != heads * parts.head_dim:
        raise _refuse(
            model,
            f"{part.module} of layer {parts.number} puts out {value.shape[-1]} numbers a token, not "
            f"{part.width * heads * parts.head_dim // max(1, part.stop - part.start)}",
        )
    return part.heads(value, parts.head_dim)


@torch.no_grad()
def _normed(attention: Any, parts: LayerParts, letter: str, heads: Tensor) -> Tensor:
    name = {"q": parts.q_norm, "k": parts.k_norm, "v": parts.v_norm}[letter]
    return normed(getattr(attention, name), heads) if name else heads


def _proportional(a: Tensor, b: Tensor, allowance: Allowance) -> bool:
    """Equal up to one factor: some extended RoPE scales queries and keys by a constant."""
    factor = float((a * b).sum() / (a * a).sum().clamp(min=torch.finfo(a.dtype).tiny))
    return allowance.near(a * factor, b)


def _check_z(model: PreTrainedModel, parts: LayerParts, activations: ModuleActivations, stages: Stages) -> None:
    z = stages["z"].transpose(1, 2).flatten(2)  # (prompt, token, head x head_dim)
    projection_input = activations.modules[parts.number, "z"]
    if projection_input.shape != z.shape or not torch.equal(projection_input, z):
        raise _refuse(
            model,
            f"the output projection of layer {parts.number} does not read what attention returns (a gate, a norm?)",
        )


def _check_gate(model: PreTrainedModel, parts: LayerParts, stages: Stages, allowance: Allowance) -> None:
    """Refuse a model in which z is not what each head attends to, times a gate between 0 and 1."""
    values = stages["values"].repeat_interleave(parts.group, dim=1)  # (prompt, head, token, head_dim)
    attended, z = torch.softmax(stages["scores"], dim=-1) @ values, stages["z"]
    nearest = torch.minimum(torch.maximum(z, attended.clamp(max=0)), attended.clamp(min=0))
    if not allowance.near(nearest, z):
        raise _refuse(model, f"z of layer {parts.number} is not the output of its heads times a gate between 0 and 1")


def _check_shared_keys(model: PreTrainedModel, anatomy: Anatomy, recording: RecordedRun) -> None:
    for parts in anatomy.parts:
        if parts.n_heads and not parts.has_own_keys:
            for site in ("keys", "values"):
                own, source = (recording.sites[site][number] for number in (parts.number, parts.key_layer))
                if not torch.equal(own.to(source.device), source):
                    raise _refuse(model, f"layer {parts.number} does not attend to {site} of layer {parts.key_layer}")


def _check_chain(model: PreTrainedModel, anatomy: Anatomy, activations: ModuleActivations) -> None:
    """Refuse a model that does not pass each layer's output unchanged to the next, as a replay does."""
    for layer in range(anatomy.n_layers):
        out, next_input = activations.modules[layer, "written"], activations.modules[layer + 1, "resid"]
        if not torch.equal(out.to(next_input.device), next_input):
            raise UnsupportedArchitecture(
                f"{type(model).__name__}: the output of layer {layer} is not the next layer's input: the model "
                "scales it or adds to it between its layers, which rebinding/surgery/replay.py does not support."
            )


def _check_head(model: PreTrainedModel, anatomy: Anatomy, activations: ModuleActivations, allowance: Allowance) -> None:
    with torch.no_grad():
        rebuilt = anatomy.logits(model, activations.modules[anatomy.n_layers, "resid"])
    if not allowance.near(rebuilt, activations.logits):
        raise _refuse(
            model, "its logits are not its head on its final norm, with the factor and soft cap of its config"
        )


@torch.no_grad()
def norms_hold(model: PreTrainedModel, anatomy: Anatomy, activations: ModuleActivations, allowance: Allowance) -> bool:
    """Whether the norm layout rebuilds every layer from its parts."""
    if anatomy.branches is None:
        return False
    for number, layer in enumerate(anatomy.layer_modules(model)):
        resid = activations.modules[number, "resid"].to(
            activations.modules[number, "read"].device
        )  # the layer may be on another one
        try:
            with raise_weights(layer):
                attention_input = anatomy.attention_input(layer, resid)
                output = anatomy.layer_output(layer, number, resid, activations.modules[number, "attended"])
        except (AttributeError, TypeError, RuntimeError):  # no such norm; or an MLP that takes or returns more
            return False
        if not allowance.near(attention_input, activations.modules[number, "read"]):
            return False
        if not allowance.near(output, activations.modules[number, "written"]):
            return False
    return True
