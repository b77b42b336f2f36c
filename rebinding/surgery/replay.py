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
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.attention import AttentionStage, SharedPrefix
from rebinding.surgery.batch import WRITABLE, Batch, RawHeads, Results, rewritten
from rebinding.surgery.calling import Keys, MixerRun, call_layer, watch_module
from rebinding.surgery.plan import ORDER
from rebinding.surgery.recording import RecordedRun, cut_call, lines, site_of_module, with_site
from rebinding.surgery.sites import Attention, Site, reduced_logits

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
    rewrites: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)

    def per_query_head(self, layer: int) -> bool:
        """Whether an edit or a read names one query head's copy of a key or value."""
        return bool(self.rewrites) or bool(self.batch.sites_at(layer) & PER_QUERY_HEAD)

    def prefix(self, layer: int) -> SharedPrefix | None:
        if self.batch.begin == 0:
            return None
        return shared_prefix(self.batch.recording, layer, self.batch.source[: self.n_active], self.batch.begin)

    def see(self, layer: int, stage: AttentionStage, value: Tensor) -> Tensor:
        if stage in ("keys", "values"):
            return value
        site: Any = stage
        if stage in self.rewrites:
            value = self.rewrites[stage](value)
        if stage == "z" and self.attention == "frozen":
            value = self._recorded_z(layer)
        value = self.batch.edit(layer, site, value, self.results)
        self.batch.read(layer, site, value, self.results)
        return value

    def _recorded_z(self, layer: int) -> Tensor:
        z = self.batch.recording.sites["z"][layer]
        return z[self.batch.source[: self.n_active].to(z.device)][:, :, self.batch.begin : self.batch.end]


def shared_prefix(recording: RecordedRun, layer: int, source: Tensor, length: int) -> SharedPrefix:
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

    shared: dict[int, Keys] = {}
    layers, raw = anatomy.layer_modules(model), RawHeads(anatomy, batch)

    def run(layer: nn.Module, number: int, hidden: Tensor) -> Tensor:
        return run_layer(layers, anatomy, batch, number, hidden, attention, results, shared, raw)

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
    layers: nn.ModuleList,
    anatomy: Anatomy,
    batch: Batch,
    number: int,
    hidden: Tensor,
    attention: Attention,
    results: Results,
    shared: dict[int, Keys],
    raw: RawHeads,
) -> Tensor:
    """One decoder layer of the model on the active rows.

    `shared` are the keys and values of layers from which others take theirs, `raw` those before norm and RoPE.
    """
    layer, parts, source = layers[number], anatomy.parts[number], batch.source[: hidden.shape[0]]
    call = cut_call(batch.recording.calls[number], batch.begin, batch.end, hidden.device, source)
    rules = LayerRules(
        batch, number, hidden.shape[0], attention, results, skip=count_unread_queries(batch, number, attention)
    )
    if anatomy.shares_keys and not parts.has_own_keys:
        complete_keys(shared, batch.recording, parts.key_layer, source, slice(batch.begin, batch.end))
    with ExitStack() as hooks:
        _hook_outputs(hooks, layer, parts, rules)
        if "resid_mid" in batch.sites_at(number):
            see = partial(_see_middle, anatomy, rules, hidden)
            watch_module(hooks, layer, anatomy.last_of_attention(parts), "output", see)
        raw.watch(hooks, layer, parts)
        for site, copy in WRITABLE.items():
            if rewrite := rewritten(layers, raw, parts, site, call, results):
                rules.rewrites[copy] = rewrite
        if rules.skip:
            _skip_unread_queries(hooks, layer, parts, rules.skip, hidden.shape[0])
        mixer = _mixer_run(parts, batch, source, attention)
        sharing = shared if anatomy.shares_keys else None
        return call_layer(layer, anatomy, number, hidden, call, rules, shared=sharing, mixer=mixer)


def _mixer_run(parts: LayerParts, batch: Batch, source: Tensor, attention: Attention) -> MixerRun | None:
    if not parts.mixer:
        return None
    if attention == "frozen":
        return MixerRun(output=batch.window(batch.recording.sites["attention_output"][parts.number], 0, len(source)))
    before = batch.recording.sites["mixer_input"][parts.number]  # (prompt, token, hidden)
    return MixerRun(before=before[source.to(before.device), : batch.begin])


def complete_keys(
    shared: dict[int, Keys], recording: RecordedRun, layer: int, source: Tensor, tokens: slice | Tensor
) -> None:
    """Add the recorded keys and values of `layer`, at `tokens`, for rows that started above it."""
    recorded = recording.sites["keys"][layer], recording.sites["values"][layer]
    known = shared.get(layer)
    n_known = 0 if known is None else known[0].shape[0]
    if n_known == len(source):
        return
    rows = source[n_known:].to(recorded[0].device)
    if isinstance(tokens, slice):
        keys, values = (value[rows, :, tokens] for value in recorded)  # (row, kv head, token, head_dim)
    else:
        at = tokens[n_known:].to(rows.device)  # (row, column)
        keys, values = (value.transpose(1, 2)[rows[:, None], at].transpose(1, 2) for value in recorded)
    if known is not None:
        keys, values = (torch.cat([old.to(new), new]) for old, new in zip(known, (keys, values), strict=True))
    shared[layer] = keys, values


def _hook_outputs(hooks: ExitStack, layer: nn.Module, parts: LayerParts, rules: LayerRules) -> None:
    """Edit and read the outputs of the projections and the MLP of a layer, where something is edited or read there."""
    batch, number, results = rules.batch, rules.layer, rules.results

    def see(site: Site, raw: Any) -> Any:
        value = site_of_module(parts, site, raw, rules.n_active)
        edited = batch.edit(number, site, value, results)
        batch.read(number, site, edited, results)
        return None if edited is value else with_site(parts, site, raw, edited)

    for site in batch.sites_at(number) & ({"q", "k", "v", "mlp_out"} if parts.has_own_keys else {"q", "mlp_out"}):
        watch_module(hooks, layer, *parts.module_of(site), partial(see, site))


def _see_middle(anatomy: Anatomy, rules: LayerRules, hidden: Tensor, raw: Any) -> Any:
    """Edit and read the residual stream between attention and MLP: attention adds what leads to the edited value."""
    added = raw[0] if isinstance(raw, tuple) else raw
    value = anatomy.middle(hidden, added)
    edited = rules.batch.edit(rules.layer, "resid_mid", value, rules.results)
    rules.batch.read(rules.layer, "resid_mid", edited, rules.results)
    if edited is value:
        return None
    new = torch.where(edited == value, added, anatomy.added_for(edited, hidden))  # elsewhere as it is, unrounded
    return (new, *raw[1:]) if isinstance(raw, tuple) else new


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


def _skip_unread_queries(hooks: ExitStack, layer: nn.Module, parts: LayerParts, skip: int, rows: int) -> None:
    """Let the layer's modules skip the first `skip` tokens."""
    names = [(parts.mlp[0], parts.mlp[-1])]
    if parts.n_heads:
        names.append((parts.output, parts.output))
        if parts.q.module not in (parts.k.module, parts.v.module):
            names.append((parts.q.module, parts.q.module))
    for first, last in names:
        watch_module(hooks, layer, first, "input", lambda value: _cut(value, rows, skip))
        watch_module(hooks, layer, last, "output", lambda value: _padded(value, rows, skip))


def _cut(value: Tensor, rows: int, skip: int) -> Tensor:
    """A module's input (row, token, width), or (row x token, width), without the skipped tokens."""
    if value.ndim == 2:
        return value.view(rows, -1, value.shape[-1])[:, skip:].flatten(0, 1)
    return value[:, skip:].contiguous()


def _padded(output: Any, rows: int, skip: int) -> Any:
    """A module's output, shaped as its input, or the first of several, with zeros for the skipped tokens."""
    if isinstance(output, tuple):
        return (_padded(output[0], rows, skip), *output[1:])
    value: Tensor = output if output.ndim > 2 else output.view(rows, -1, output.shape[-1])
    padded = torch.cat([value.new_zeros(value.shape[0], skip, *value.shape[2:]), value], dim=1)
    return padded if output.ndim > 2 else padded.flatten(0, 1)


def _read_logits(model: PreTrainedModel, anatomy: Anatomy, batch: Batch, hidden: Tensor, results: Results) -> None:
    """Logits at the positions that are read, and only there: a vocabulary per token is the largest tensor of all."""
    last, rows = anatomy.n_layers, batch.rows[: hidden.shape[0]]
    edited = bool(batch.edits_at(last, "logits"))
    all_logits = batch.edit(last, "logits", anatomy.logits(model, hidden), results) if edited else None
    for number, read in enumerate(batch.plan.reads):
        if read.site != "logits":
            continue
        if all_logits is not None:
            results.put(number, rows, batch.gathered(all_logits, read))
            continue
        values = batch.gathered(hidden, read)  # (row, position, hidden)
        results.keep(number, rows, reduced_logits(model, anatomy, values, read.reduce, rows))
