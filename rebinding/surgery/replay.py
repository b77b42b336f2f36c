"""Run rows from where they first change: layer by layer, over a window of tokens, on top of a recording.

Row `r` enters at its own start layer with the recorded residual and runs upwards with the other rows, so the batch
grows. The layers are the model's own modules, called with the keywords with which the model called them; tokens before
the window exist only as recorded keys and values (`SharedPrefix`).

The last layer is computed for the tokens that are read above it. The other tokens' keys and values are still needed
there; their queries, output projections and MLPs are not. The modules that act on each token by itself skip the first
`skip` tokens of the window and return zeros for them; the residual there is invalid, and nothing reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.attention import SharedPrefix, Stage
from rebinding.surgery.batch import Batch, Results
from rebinding.surgery.keys import rewritten_keys
from rebinding.surgery.plan import ORDER
from rebinding.surgery.recording import Recording, cut_call, lines, site_of_output
from rebinding.surgery.sites import Attention, Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel

RunLayer: TypeAlias = Callable[[nn.Module, int, Tensor], Tensor]
"""Runs a layer (module, number, residual of the active rows); returns the new residual."""
PER_QUERY_HEAD: frozenset[Site] = frozenset({"k_rot", "v_seen"})
INSIDE = range(ORDER["resid"] + 1, ORDER["logits"])
"""Sites for which a layer has to be run."""


@dataclass(eq=False)
class LayerRules:
    """The attention rules of one layer for a batch: prefix, edits, reads."""

    batch: Batch
    layer: int
    n_active: int
    attention: Attention
    results: Results
    skip: int
    rewrite: Callable[[Tensor], Tensor] | None = None

    def per_query_head(self, layer: int) -> bool:
        """Whether an edit or a read names one query head's copy of a key or value."""
        return self.rewrite is not None or bool(self.batch.sites_at(layer) & PER_QUERY_HEAD)

    def prefix(self, layer: int) -> SharedPrefix | None:
        if self.batch.begin == 0:
            return None
        return shared_prefix(self.batch.recording, layer, self.batch.source[: self.n_active], self.batch.begin)

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        if stage in ("keys", "values"):
            return value
        site: Any = stage
        if stage == "k_rot" and self.rewrite is not None:
            value = self.rewrite(value)
        if stage == "z" and self.attention == "frozen":
            value = self._recorded_z(layer)
        value = self.batch.edit(layer, site, value, self.results)
        self.batch.read(layer, site, value, self.results)
        return value

    def _recorded_z(self, layer: int) -> Tensor:
        z = self.batch.recording.sites["z"][layer]
        return z[self.batch.source[: self.n_active].to(z.device)][:, :, self.batch.begin : self.batch.end]


def shared_prefix(recording: Recording, layer: int, source: Tensor, length: int) -> SharedPrefix:
    """The first `length` recorded keys and values of the prompts that rows continue, one copy per prompt."""
    keys, values = recording.sites["keys"][layer], recording.sites["values"][layer]
    prompts, prompt_of_row = source.unique(return_inverse=True)
    if prompts.numel() < recording.n_prompts:
        keys, values = keys[prompts.to(keys.device)], values[prompts.to(values.device)]
    width, rest = divmod(prompt_of_row.numel(), prompts.numel())
    place = None
    if rest or not torch.equal(prompt_of_row, torch.arange(prompts.numel()).repeat(width)):
        order = torch.argsort(prompt_of_row, stable=True)
        counts = torch.bincount(prompt_of_row)
        width = int(counts.max())
        rank = torch.empty_like(order)
        rank[order] = torch.arange(order.numel()) - (counts.cumsum(0) - counts)[prompt_of_row[order]]
        place = (prompt_of_row * width + rank).to(keys.device)
    return SharedPrefix(keys[:, :, :length], values[:, :, :length], place, width)


def replay(
    model: PreTrainedModel, anatomy: Anatomy, batch: Batch, results: Results, *, attention: Attention = "live"
) -> None:
    """Compute a batch and put its reads into `results`."""

    def run(layer: nn.Module, number: int, hidden: Tensor) -> Tensor:
        return run_layer(layer, anatomy, batch, number, hidden, attention, results)

    run_layers(model, anatomy, batch, results, run)


def run_layers(model: PreTrainedModel, anatomy: Anatomy, batch: Batch, results: Results, run: RunLayer) -> None:
    """Run the rows up to the highest read, each layer computed by `run`."""
    plan, layers = batch.plan, anatomy.layer_modules(model)
    highest_read = max((read.layer, ORDER[read.site]) for read in plan.reads)
    hidden: Tensor | None = None
    for number in range(int(batch.start.min()), plan.stop + 1):
        hidden = _admit(batch, number, hidden)
        hidden = batch.edit(number, "resid", hidden, results)
        batch.read(number, "resid", hidden, results)
        if number == anatomy.n_layers or (number, ORDER["resid"]) >= highest_read:
            break
        hidden = run(layers[number], number, hidden)
    if plan.stop == anatomy.n_layers and hidden is not None:
        _read_logits(model, anatomy, batch, hidden, results)


def _admit(batch: Batch, layer: int, hidden: Tensor | None) -> Tensor:
    """The residual at a layer's input; rows that start here join with their recorded residual."""
    resid = batch.recording.sites["resid"][layer]  # (prompt, token, hidden)
    n_old = 0 if hidden is None else hidden.shape[0]
    joining = batch.window(resid, n_old, batch.active(layer))  # (row, token, hidden)
    if hidden is None:
        return joining
    hidden = hidden.to(resid.device)
    return torch.cat([hidden, joining]) if joining.shape[0] else hidden


def run_layer(
    layer: nn.Module,
    anatomy: Anatomy,
    batch: Batch,
    number: int,
    hidden: Tensor,
    attention: Attention,
    results: Results,
) -> Tensor:
    """One decoder layer of the model on the active rows."""
    call = cut_call(batch.recording.calls[number], batch.begin, batch.end, hidden.device)
    rules = LayerRules(
        batch, number, hidden.shape[0], attention, results, skip=count_unread_queries(batch, number, attention)
    )
    with ExitStack() as hooks:
        _hook_outputs(hooks, layer, anatomy, rules)
        if isolated := batch.edits_at(number, "k", scope="head"):
            rules.rewrite = rewritten_keys(hooks, layer, anatomy, isolated, batch, call, results)
        if rules.skip:
            _skip_unread_queries(hooks, layer, anatomy, rules.skip)
        out = layer(hidden, **call, use_cache=False, rules=rules)
    value: Tensor = out[0] if isinstance(out, tuple) else out
    return value


def _hook_outputs(hooks: ExitStack, layer: nn.Module, anatomy: Anatomy, rules: LayerRules) -> None:
    """Edit and read the outputs of the projections and the MLP of a layer, where something is edited or read there."""
    batch, number, results = rules.batch, rules.layer, rules.results

    def hook(site: Site, module: nn.Module, args: Any, output: Any) -> Any:
        value = site_of_output(anatomy, site, output)
        edited = batch.edit(number, site, value, results)
        batch.read(number, site, edited, results)
        return output if edited is value else _replaced(anatomy, site, output, edited)

    for site in batch.sites_at(number) & {"q", "k", "v", "mlp_out"}:
        module = layer.get_submodule(anatomy.output_of(site).module)
        hooks.callback(module.register_forward_hook(partial(hook, site)).remove)


def _replaced(anatomy: Anatomy, site: Site, output: Any, edited: Tensor) -> Any:
    if site == "mlp_out":
        return (edited, *output[1:]) if isinstance(output, tuple) else edited
    part = anatomy.output_of(site)
    result = output.clone()
    result[..., part.start : part.stop] = edited.transpose(1, 2).flatten(2)
    return result


def count_unread_queries(batch: Batch, layer: int, attention: Attention) -> int:
    """Number of tokens at the start of the window that are not read above this layer; 0 if it must run in full."""
    reads, above = batch.plan.reads, layer + 1
    if above != batch.plan.stop or any(read.layer == above and ORDER[read.site] in INSIDE for read in reads):
        return 0
    has_inner_edit = any(placed.edit.layer == layer and placed.edit.site != "resid" for placed in batch.placed)
    if has_inner_edit or attention == "frozen" or any(read.layer == layer and read.site != "resid" for read in reads):
        return 0
    first = min(int(lines(read.positions, batch.rows).min()) for read in reads if read.layer == above)
    return max(0, first - batch.begin)


def _skip_unread_queries(hooks: ExitStack, layer: nn.Module, anatomy: Anatomy, skip: int) -> None:
    """Let the layer's modules skip the first `skip` tokens."""
    names = [anatomy.output, anatomy.mlp]
    if anatomy.q.module not in (anatomy.k.module, anatomy.v.module):
        names.append(anatomy.q.module)
    for module in map(layer.get_submodule, names):
        hooks.callback(module.register_forward_pre_hook(lambda _, args: (args[0][:, skip:], *args[1:])).remove)
        hooks.callback(module.register_forward_hook(lambda _, args, output: _padded(output, skip)).remove)


def _padded(output: Any, skip: int) -> Any:
    """A module's output (row, token, width), or the first of several, with zeros for the skipped tokens."""
    if isinstance(output, tuple):
        return (_padded(output[0], skip), *output[1:])
    value: Tensor = output
    return torch.cat([value.new_zeros(value.shape[0], skip, *value.shape[2:]), value], dim=1)


def _read_logits(model: PreTrainedModel, anatomy: Anatomy, batch: Batch, hidden: Tensor, results: Results) -> None:
    """Logits at the positions that are read, and only there: a vocabulary per token is the largest tensor of all."""
    last, rows = anatomy.n_layers, batch.rows[: hidden.shape[0]]
    edited = bool(batch.edits_at(last, "logits"))
    all_logits = batch.edit(last, "logits", anatomy.logits(model, hidden), results) if edited else None
    for number, read in enumerate(batch.plan.reads):
        if read.site != "logits":
            continue
        source = hidden if all_logits is None else all_logits
        values = batch.gathered(source, read)  # (row, position, width)
        results.put(number, rows, anatomy.logits(model, values) if all_logits is None else values)
