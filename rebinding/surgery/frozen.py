"""Replay with frozen attention, for layers whose parts are known. Positions are independent, so few are computed.

With every head's output held at its recorded value, the residual at a position depends on that position alone:

    r <- layer_output(r, o),   o recorded, or projected anew where an edit writes z

so a row is computed only at its edited and read tokens, and a layer costs its MLP. Rows with equally many tokens run
together, at whatever positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.batch import Batch, Results
from rebinding.surgery.plan import ORDER, Plan
from rebinding.surgery.recording import Recording, site_of_module
from rebinding.surgery.replay import run_layers
from rebinding.surgery.sites import Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READABLE: frozenset[Site] = frozenset({"resid", "q", "k", "v", "z", "mlp_out", "logits"})
"""Sites that can be read without running attention."""


def can_run(anatomy: Anatomy, recording: Recording, plan: Plan) -> bool:
    """Whether the parts of this anatomy are known and nothing inside attention is read."""
    is_known = anatomy.branches is not None and all(part.k.end == "output" for part in anatomy.parts)
    is_known = is_known and "attention_output" in recording.sites  # recorded together with z
    return is_known and {read.site for read in plan.reads} <= READABLE


def replay_frozen(model: PreTrainedModel, anatomy: Anatomy, batch: Batch, results: Results) -> None:
    """Compute a batch over its window, with attention as recorded."""
    highest_read = max((read.layer, ORDER[read.site]) for read in batch.plan.reads)

    def run(layer: nn.Module, number: int, hidden: Tensor) -> Tensor:
        _read_projections(layer, anatomy, batch, number, hidden, results)
        if (number, ORDER["q"]) >= highest_read:  # no read is above
            return hidden
        return _layer(layer, anatomy, batch, number, hidden, results)

    run_layers(model, anatomy, batch, results, run)


def _read_projections(
    layer: nn.Module, anatomy: Anatomy, batch: Batch, number: int, hidden: Tensor, results: Results
) -> None:
    sites = {read.site for read in batch.plan.reads if read.layer == number} & {"q", "k", "v"}
    if not sites:
        return
    entry = anatomy.attention_input(layer, hidden)
    for site in sites:
        parts = anatomy.parts[number]
        value = layer.get_submodule(parts.projection(site).module)(entry)
        batch.read(number, site, site_of_module(parts, site, value, hidden.shape[0]), results)


def _layer(layer: nn.Module, anatomy: Anatomy, batch: Batch, number: int, hidden: Tensor, results: Results) -> Tensor:
    output = batch.window(batch.recording.sites["attention_output"][number], 0, hidden.shape[0])
    is_z_read = any(read.layer == number and read.site == "z" for read in batch.plan.reads)
    edits = batch.edits_at(number, "z")
    if edits or is_z_read:
        recorded = batch.window(batch.recording.sites["z"][number].transpose(1, 2), 0, hidden.shape[0])
        z = batch.edit(number, "z", recorded.transpose(1, 2), results)  # (row, head, token, head_dim)
        batch.read(number, "z", z, results)
        if edits:
            rows = torch.cat([placed.at for placed in edits]).unique().to(z.device)
            output = output.clone()
            output[rows] = layer.get_submodule(anatomy.parts[number].output)(z[rows].transpose(1, 2).flatten(2))

    def see(value: Tensor) -> Tensor:
        value = batch.edit(number, "mlp_out", value, results)
        batch.read(number, "mlp_out", value, results)
        return value

    return anatomy.layer_output(layer, number, hidden, output, see)
