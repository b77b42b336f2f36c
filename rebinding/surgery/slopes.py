"""Gradients of a score by outputs of heads and MLPs, and estimates of the effect of every edge between them.

A gradient is a first-order estimate of the effect of a small edit: where attention is saturated it is 0, and a large
edit has another effect. It is used to choose which edits to run, never in place of running them.

**Edge attribution.** The effect of an edge from a sender to what a receiver reads at the sender's token is, to first
order, the change of what the sender writes into the residual stream, times the gradient of the receiver's output by its
query, key, value or MLP input there, times the gradient of the score by the receiver's output. A receiver is one query
head, also where heads share keys. All other heads and MLPs stay as they are. The integrated form is the mean of such
estimates over runs whose input is interpolated between noise and clean prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.calling import run_alone, watch_module
from rebinding.surgery.sites import SurgeryError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ScoreOfResid: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Takes the last layer's output (row, token, hidden) and the numbers of its prompts: one number a row."""
Reading: TypeAlias = Literal["q", "k", "v", "mlp"]
READINGS: tuple[Reading, ...] = ("q", "k", "v", "mlp")
ROWS = 4
"""Prompts whose gradients are computed at once."""


@dataclass(frozen=True, eq=False)
class Tape:
    """The tensors of one forward pass, by layer, with the graph that leads from one to the next.

    `read` has raw queries, keys and values as their modules take or give them, `middle` the residual stream between
    attention and MLP (or a layer's input, where its branches are parallel), `attention` and `mlp` what the two branches
    add to the residual stream before the family's factor.
    """

    resid: dict[int, Tensor] = field(default_factory=dict)
    read: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    z: dict[int, Tensor] = field(default_factory=dict)
    attention: dict[int, Tensor] = field(default_factory=dict)
    middle: dict[int, Tensor] = field(default_factory=dict)
    mlp_out: dict[int, Tensor] = field(default_factory=dict)
    mlp: dict[int, Tensor] = field(default_factory=dict)

    def watch(self, hooks: ExitStack, layer: Any, anatomy: Anatomy, parts: LayerParts) -> None:
        """Keep the tensors of a layer."""
        number, branches = parts.number, anatomy.branches

        def keep(kept: dict[Any, Tensor], key: Any, value: Any) -> None:
            kept[key] = value[0] if isinstance(value, tuple) else value

        watch_module(hooks, layer, "", "input", partial(keep, self.resid, number))
        if parts.n_heads:
            watch_module(hooks, layer, parts.output, "input", partial(keep, self.z, number))
        for site in ("q", "k", "v") if parts.has_own_keys else ("q",) if parts.n_heads else ():
            watch_module(hooks, layer, *parts.module_of(site), partial(keep, self.read, (number, site)))
        watch_module(hooks, layer, parts.mlp[-1], "output", partial(keep, self.mlp_out, number))
        if branches is not None:
            last = anatomy.last_of_attention(parts)
            watch_module(hooks, layer, last, "output", partial(keep, self.attention, number))
            watch_module(hooks, layer, branches.mlp_after or parts.mlp[-1], "output", partial(keep, self.mlp, number))
            middle = "" if branches.is_parallel else branches.mlp_before or parts.mlp[0]
            watch_module(hooks, layer, middle, "input", partial(keep, self.middle, number))


def _forward(
    model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, start: Tensor | None = None
) -> tuple[Tensor, Tape]:
    """The last layer's output, and the tape; with `start` (prompt, token, hidden) in place of the first layer's
    input."""
    tape, final = Tape(), list[Tensor]()

    def begin(value: Tensor) -> Tensor:
        own = value if start is None else anatomy.to_layer(start.to(value))
        return own.detach().requires_grad_()

    def keep_output(output: Any) -> None:
        final.append(anatomy.from_layer(output[0] if isinstance(output, tuple) else output))

    with ExitStack() as hooks:
        layers = anatomy.layer_modules(model)
        watch_module(hooks, layers[0], "", "input", begin)
        for parts in anatomy.parts:
            tape.watch(hooks, layers[parts.number], anatomy, parts)
        watch_module(hooks, layers[-1], "", "output", keep_output)
        embedding = next(model.get_input_embeddings().parameters())
        model.get_submodule(anatomy.decoder)(input_ids=tokens.to(embedding.device), use_cache=False)
    return final[0], tape


@torch.enable_grad()
def output_slopes(
    model: PreTrainedModel,
    anatomy: Anatomy,
    tokens: Tensor,
    score: ScoreOfResid,
    *,
    mlps: bool = False,
    rows: int = ROWS,
) -> tuple[list[Tensor], list[Tensor]]:
    """The gradient of the score of prompts (prompt, token) by z, by layer (prompt, head, token, head_dim), empty where
    a layer has no heads; and, with `mlps`, by outputs of MLPs (prompt, token, width)."""
    by_part: list[list[Tensor]] = []
    for prompts in torch.arange(tokens.shape[0]).split(rows):
        with run_alone(model):
            final, tape = _forward(model, anatomy, tokens[prompts])
        outputs = [*tape.z.values(), *(tape.mlp_out.values() if mlps else ())]
        slopes = torch.autograd.grad(score(final, prompts).sum(), outputs)
        by_part.append([_by_token(slope, len(prompts)) for slope in slopes])
    together = [torch.cat(parts) for parts in zip(*by_part, strict=True)]
    of_z = dict(zip((part.number for part in anatomy.parts if part.n_heads), together, strict=False))
    of_heads = [by_head(of_z[part.number], part.n_heads) if part.n_heads else torch.empty(0) for part in anatomy.parts]
    return of_heads, together[len(of_z) :]


def _by_token(value: Tensor, rows: int) -> Tensor:
    """A value by prompt and token (prompt, token, width); some MLPs flatten these."""
    return value.reshape(rows, -1, value.shape[-1])


def by_head(value: Tensor, n_heads: int) -> Tensor:
    """A value (prompt, token, head x head_dim) by head (prompt, head, token, head_dim)."""
    heads: Tensor = value.unflatten(-1, (n_heads, -1))
    return heads.transpose(1, 2)


@dataclass(frozen=True, eq=False)
class Receiver:
    """A head at one token of each prompt, `at` (prompt,), -1 for none. A negative number in place of a head is the MLP
    of the layer."""

    layer: int
    head: int
    at: Tensor


Changes: TypeAlias = Mapping[int, Tensor]
"""By layer, the change of z (prompt, head, token, head_dim) or of the MLP's output (prompt, token, width)."""
Estimates: TypeAlias = dict[tuple[int, bool], Tensor]
"""By layer, and whether it is of its MLP or its heads: (reading, prompt, head, token); an MLP has one head."""


@torch.enable_grad()
def edge_estimates(
    model: PreTrainedModel,
    anatomy: Anatomy,
    tokens: Tensor,
    score: ScoreOfResid,
    receivers: Sequence[Receiver],
    heads: Changes,
    mlps: Changes,
    starts: Sequence[Tensor | None] = (None,),
) -> Estimates:
    """The estimated change of the score via each reading of all receivers together, for each change alone: the mean
    over runs that start from `starts` (prompt, token, hidden), None for the prompts' own."""
    if anatomy.branches is None:
        raise SurgeryError("edge attribution needs layers that add one attention branch and one MLP to one stream")
    parts: list[Estimates] = []
    for prompts in torch.arange(tokens.shape[0]).split(ROWS):
        own = [Receiver(receiver.layer, receiver.head, receiver.at[prompts]) for receiver in receivers]
        changes = [{layer: value[prompts] for layer, value in of_part.items()} for of_part in (heads, mlps)]
        runs: list[Estimates] = []
        for start in starts:
            with run_alone(model):
                final, tape = _forward(model, anatomy, tokens[prompts], None if start is None else start[prompts])
            slopes_of_inputs = _input_slopes(tape, anatomy, score(final, prompts).sum(), own)
            runs.append(_effects(tape, anatomy, slopes_of_inputs, *changes))
        parts.append({key: torch.stack([run[key] for run in runs]).mean(0) for key in runs[0]})
    return {key: torch.cat([part[key] for part in parts], dim=1) for key in parts[0]}


InputSlopes: TypeAlias = dict[tuple[int, Reading], Tensor]
"""By layer and reading, the gradient (prompt, token, hidden) by the residual stream there."""


def _input_slopes(tape: Tape, anatomy: Anatomy, total: Tensor, receivers: Sequence[Receiver]) -> InputSlopes:
    """The gradients of a score by what receivers read, where they read it."""
    keys = dict.fromkeys((receiver.layer, receiver.head < 0) for receiver in receivers)
    outputs = {(layer, is_mlp): (tape.mlp_out if is_mlp else tape.z)[layer] for layer, is_mlp in keys}
    slopes = torch.autograd.grad(total, list(outputs.values()), retain_graph=True)
    slopes_of_inputs: InputSlopes = {}
    for (layer, is_mlp), slope in zip(outputs, slopes, strict=True):
        parts, rows = anatomy.parts[layer], len(receivers[0].at)
        by_token = _by_token(slope, rows)
        seed = torch.zeros_like(by_token, memory_format=torch.contiguous_format)  # (prompt, token, width)
        for receiver in receivers:
            if (receiver.layer, receiver.head < 0) != (layer, is_mlp):
                continue
            prompt = torch.nonzero(receiver.at >= 0).reshape(-1)
            width = parts.head_dim
            own = slice(None) if is_mlp else slice(receiver.head * width, (receiver.head + 1) * width)
            seed[prompt, receiver.at[prompt], own] = by_token[prompt, receiver.at[prompt], own]
        output, seed = outputs[layer, is_mlp], seed.reshape(slope.shape)
        if is_mlp:
            (slopes_of_inputs[layer, "mlp"],) = torch.autograd.grad(
                output, [tape.middle[layer]], seed, retain_graph=True
            )
            continue
        places: list[tuple[Reading, int]] = [("q", layer), ("k", parts.key_layer), ("v", parts.key_layer)]
        for site, at in places:
            source, projection = tape.read[at, site], anatomy.parts[at].projection(site)
            (whole,) = torch.autograd.grad(output, [source], seed, retain_graph=True)
            slope_of_site = projection.replaced(torch.zeros_like(whole), projection.heads(whole, parts.head_dim))
            (slope_of_input,) = torch.autograd.grad(source, [tape.resid[at]], slope_of_site, retain_graph=True)
            _add(slopes_of_inputs, (at, site), slope_of_input)
    return slopes_of_inputs


def _add(totals: dict[Any, Tensor], key: object, value: Tensor) -> None:
    """Add to a total; layers may be on several devices."""
    totals[key] = totals[key].to(value.device) + value if key in totals else value


def _effects(tape: Tape, anatomy: Anatomy, slopes_of_inputs: InputSlopes, heads: Changes, mlps: Changes) -> Estimates:
    """What the change of each sender alone does, by what arrives of it in layers above, and in the MLP of its layer."""
    assert anatomy.branches is not None
    estimates: Estimates = {}
    slopes_above = dict[Reading, Tensor]()
    for layer in reversed(range(anatomy.n_layers)):
        for is_mlp, changes, writes, output in (
            (True, mlps, tape.mlp, tape.mlp_out),
            (False, heads, tape.attention, tape.z),
        ):
            if not is_mlp and (layer, "mlp") in slopes_of_inputs and not anatomy.branches.is_parallel:
                _add(slopes_above, "mlp", slopes_of_inputs[layer, "mlp"])
            if layer not in changes:
                continue
            change = changes[layer].to(output[layer])
            change = change[:, None] if is_mlp else change  # (prompt, head, token, width)
            lines = []
            for reading in READINGS:
                if reading not in slopes_above:
                    lines.append(change.new_zeros(change.shape[:3]))
                    continue
                factor = anatomy.branches.factor
                seed = (slopes_above[reading] * factor).reshape(writes[layer].shape).to(writes[layer])
                (slope,) = (
                    (seed,)
                    if writes[layer] is output[layer]
                    else torch.autograd.grad(writes[layer], [output[layer]], seed, retain_graph=True)
                )
                by_token = _by_token(slope, change.shape[0])
                lines.append((by_head(by_token, change.shape[1]) * change).sum(-1))
            estimates[layer, is_mlp] = torch.stack(lines).detach().float().cpu()
        for reading in READINGS:
            if (layer, reading) in slopes_of_inputs and (reading != "mlp" or anatomy.branches.is_parallel):
                _add(slopes_above, reading, slopes_of_inputs[layer, reading])
    return estimates
