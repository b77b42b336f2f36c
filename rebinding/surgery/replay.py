"""Run rows from where they first change: layer by layer, over a window of tokens, on top of a recording.

Row `r` enters at its own start layer with the recorded residual and is carried upwards with the others, so the batch
grows. The layers are the model's own modules, called with the keywords with which the model called them; tokens before
the window exist only as recorded keys and values (`SharedPrefix`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.attention import SharedPrefix, Stage
from rebinding.surgery.batch import Batch, Results
from rebinding.surgery.keys import rewritten_keys
from rebinding.surgery.narrow import narrowed, unread
from rebinding.surgery.plan import ORDER
from rebinding.surgery.recording import Recording, cut_call, site_of_output
from rebinding.surgery.sites import Attention, Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PER_QUERY_HEAD: tuple[Site, ...] = ("k_rot", "v_seen")


class LayerRules:
    """What the attention of one layer sees of a batch: its prefix, its edits, its reads."""

    def __init__(
        self, batch: Batch, layer: int, n_active: int, attention: Attention, results: Results, skip: int
    ) -> None:
        self.batch, self.layer, self.n_active = batch, layer, n_active
        self.attention, self.results, self.skip = attention, results, skip
        self.raw_keys: Tensor | None = None
        self.rewrite: Any = None

    def per_query_head(self, layer: int) -> bool:
        """Keys and values stand apart per query head where an edit or a read names one query head's copy."""
        named = {one.edit.site for one in self.batch.placed if one.edit.layer == layer}
        named |= {read.site for read in self.batch.plan.reads if read.layer == layer}
        return self.rewrite is not None or bool(named & set(PER_QUERY_HEAD))

    def prefix(self, layer: int) -> SharedPrefix | None:
        """The recorded keys and values before the window, one copy a prompt."""
        if self.batch.begin == 0:
            return None
        return shared_prefix(self.batch.recording, layer, self.batch.source[: self.n_active], self.batch.begin)

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        """Edit and read one stage of attention."""
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
    """The first `length` recorded keys and values of the prompts that rows continue, one copy a prompt."""
    keys, values = recording.sites["keys"][layer], recording.sites["values"][layer]
    prompts, which = source.unique(return_inverse=True)
    if prompts.numel() < recording.n_prompts:
        keys, values = keys[prompts.to(keys.device)], values[prompts.to(values.device)]
    width, rest = divmod(which.numel(), prompts.numel())
    place = None
    if rest or not torch.equal(which, torch.arange(prompts.numel()).repeat(width)):
        order = torch.argsort(which, stable=True)
        counts = torch.bincount(which)
        width = int(counts.max())
        rank = torch.empty_like(order)
        rank[order] = torch.arange(order.numel()) - (counts.cumsum(0) - counts)[which[order]]
        place = (which * width + rank).to(keys.device)
    return SharedPrefix(keys[:, :, :length], values[:, :, :length], place, width)


def replay(
    model: PreTrainedModel, anatomy: Anatomy, batch: Batch, results: Results, *, attention: Attention = "live"
) -> None:
    """Compute a batch and put what is read of it into `results`."""
    plan, layers = batch.plan, anatomy.layer_modules(model)
    wanted = max((read.layer, ORDER[read.site]) for read in plan.reads)
    hidden: Tensor | None = None
    for number in range(int(batch.start.min()), plan.stop + 1):
        hidden = admit(batch, number, hidden)
        hidden = batch.edit(number, "resid", hidden, results)
        batch.read(number, "resid", hidden, results)
        if number == anatomy.n_layers or (number, ORDER["resid"]) >= wanted:
            break
        hidden = run_layer(layers[number], anatomy, batch, number, hidden, attention, results)
    if plan.stop == anatomy.n_layers and hidden is not None:
        read_logits(model, anatomy, batch, hidden, results)


def admit(batch: Batch, layer: int, hidden: Tensor | None) -> Tensor:
    """The residual at a layer's input, with the rows that start here joining as recorded."""
    resid = batch.recording.sites["resid"][layer]  # (prompt, token, hidden)
    have = 0 if hidden is None else hidden.shape[0]
    joining = batch.window(resid, have, batch.active(layer))  # (row, token, hidden)
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
    skip = unread(batch, number, attention)
    rules = LayerRules(batch, number, hidden.shape[0], attention, results, skip)
    with _projections(layer, anatomy, batch, number, rules, call, results), narrowed(layer, anatomy, skip):
        out = layer(hidden, **call, use_cache=False, rules=rules)
    value: Tensor = out[0] if isinstance(out, tuple) else out
    return value


def read_logits(model: PreTrainedModel, anatomy: Anatomy, batch: Batch, hidden: Tensor, results: Results) -> None:
    """Logits at the positions that are read, and nowhere else: a vocabulary per token is the largest tensor of all."""
    last, rows = anatomy.n_layers, batch.rows[: hidden.shape[0]]
    edited = bool(batch.edits_at(last, "logits"))
    everywhere = batch.edit(last, "logits", anatomy.logits(model, hidden), results) if edited else None
    for number, read in enumerate(batch.plan.reads):
        if read.site != "logits":
            continue
        source = hidden if everywhere is None else everywhere
        there = batch.gathered(source, read)  # (row, position, width)
        results.put(number, rows, anatomy.logits(model, there) if everywhere is None else there)


@contextmanager
def _projections(
    layer: nn.Module,
    anatomy: Anatomy,
    batch: Batch,
    number: int,
    rules: LayerRules,
    call: dict[str, Any],
    results: Results,
) -> Iterator[None]:
    """Hooks on the projections and the MLP of one layer, where something is edited or read there; gone afterwards."""
    named = {one.edit.site for one in batch.placed if one.edit.layer == number}
    named |= {read.site for read in batch.plan.reads if read.layer == number}
    isolated = batch.edits_at(number, "k", scope="head")
    handles = []
    try:
        for site in named & {"q", "k", "v", "mlp_out"}:
            path = anatomy.mlp if site == "mlp_out" else {"q": anatomy.q, "k": anatomy.k, "v": anatomy.v}[site].module
            hook = _output_hook(anatomy, batch, number, site, results)
            handles.append(layer.get_submodule(path).register_forward_hook(hook))
        if isolated:
            rules.rewrite = rewritten_keys(layer, anatomy, isolated, batch, call, handles, results)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _output_hook(anatomy: Anatomy, batch: Batch, number: int, site: Site, results: Results) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        value = site_of_output(anatomy, site, output)
        edited = batch.edit(number, site, value, results)
        batch.read(number, site, edited, results)
        return output if edited is value else _replaced(anatomy, site, output, edited)

    return hook


def _replaced(anatomy: Anatomy, site: Site, output: Any, edited: Tensor) -> Any:
    if site == "mlp_out":
        return (edited, *output[1:]) if isinstance(output, tuple) else edited
    part = {"q": anatomy.q, "k": anatomy.k, "v": anatomy.v}[site]
    whole = output.clone()
    whole[..., part.start : part.stop] = edited.transpose(1, 2).flatten(2)
    return whole
