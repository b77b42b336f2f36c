"""What a surgeon remembers of an unedited run, so that edited runs need not begin at the beginning."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.attention import SharedPrefix, Stage
from rebinding.surgery.sites import Read, Site, SurgeryError

LayerCall = dict[str, Any]
"""The keywords with which the model calls one of its layers."""


@dataclass(frozen=True, eq=False)
class Recording:
    """An unedited run over prompts of equal length.

    `sites[site][layer]` is (prompt, head, token, width), without the head axis where a site has none. `resid`,
    `keys` and `values` (after norm and RoPE, per KV head) are always there: they are what a replay starts from. `calls`
    are the keywords of each layer's call, so that a replay calls the layers as the model does. `spots` are reads of the
    unedited run, one line a prompt, kept because runs to come will ask for the same.
    """

    tokens: Tensor
    sites: dict[str, list[Tensor]]
    calls: list[LayerCall]
    spots: tuple[tuple[Read, Tensor], ...] = ()

    @property
    def n_prompts(self) -> int:
        """Prompts recorded."""
        return int(self.tokens.shape[0])

    @property
    def length(self) -> int:
        """Tokens of each prompt."""
        return int(self.tokens.shape[1])

    def has(self, site: Site) -> bool:
        """Whether the values of a site were kept."""
        return site in self.sites

    @property
    def has_attention_output(self) -> bool:
        """Whether frozen runs need not project the recorded z again; kept whenever z is."""
        return "attention_output" in self.sites

    def finds(self, read: Read, source: Tensor) -> Callable[[Tensor], Tensor] | None:
        """How to look up the unedited values of a read for rows that continue prompts `source`; None if not kept."""
        if self.has(read.site):
            kept = self.sites[read.site][read.layer]
            return lambda rows: gather(kept, source[rows], read, rows)
        every = torch.arange(source.numel())
        for spot, values in self.spots:
            if (spot.site, spot.layer) == (read.site, read.layer) and _same_heads(spot, read):
                there, here = lines(spot.positions, source), lines(read.positions, every)
                if there.shape == here.shape and torch.equal(there, here):
                    return partial(_lines_of, values, source)
        return None

    def bytes(self) -> int:
        """Memory that the kept tensors take."""
        return sum(tensor.nbytes for layers in self.sites.values() for tensor in layers)


def _lines_of(values: Tensor, source: Tensor, rows: Tensor) -> Tensor:
    return values[source[rows].to(values.device)]


def _same_heads(one: Read, other: Read) -> bool:
    if one.heads is None or other.heads is None:
        return one.heads is other.heads
    return bool(one.heads.shape[0] == 1 and torch.equal(one.heads, other.heads))


def lines(table: Tensor, rows: Tensor) -> Tensor:
    """The lines of an index table for some rows; a table of one line serves all."""
    return table.expand(rows.numel(), -1) if table.shape[0] == 1 else table[rows]


def gather(values: Tensor, places: Tensor, read: Read, rows: Tensor, *, start: int = 0) -> Tensor:
    """Pick a read's heads and positions out of `values` (place, [head,] token, width), whose first token is `start`."""
    positions = lines(read.positions, rows).to(values.device) - start  # (row, position)
    at = places.to(values.device)
    if read.heads is None:
        return values[at[:, None], positions]  # (row, position, width)
    heads = lines(read.heads, rows).to(values.device)  # (row, head)
    return values[at[:, None, None], heads[:, :, None], positions[:, None, :]]  # (row, head, position, width)


@dataclass(eq=False)
class _Recorder:
    """The rules of a recording run: change nothing (or hold z at given values), keep what was asked for."""

    wanted: frozenset[str]
    held: Sequence[Tensor] | None = None
    kept: dict[str, list[Tensor]] = field(default_factory=dict)

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        if stage == "z" and self.held is not None:
            value = self.held[layer].to(value)[None].expand_as(value)
        if stage in self.wanted:
            self.kept.setdefault(stage, []).append(value.detach())
        return value

    def per_query_head(self, layer: int) -> bool:
        return False

    def prefix(self, layer: int) -> SharedPrefix | None:
        return None


@torch.no_grad()
def record(
    model: PreTrainedModel,
    anatomy: Anatomy,
    tokens: Tensor,
    *,
    keep: Collection[Site] = (),
    held: Sequence[Tensor] | None = None,
    rows: int = 64,
) -> Recording:
    """Run the model once over `tokens` (prompt, token), `rows` prompts at a time, and keep what replays need.

    With `held`, one tensor (head, token, head_dim) a layer, every head's output is held at these values instead.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise SurgeryError(f"tokens must be (prompt, token) with at least two tokens; got shape {tuple(tokens.shape)}")
    wanted = frozenset(keep) | {"keys", "values"}
    if "logits" in keep:
        raise SurgeryError("logits are not kept for every token; read them where they are wanted")
    parts = [_record_part(model, anatomy, part, _Recorder(wanted, held)) for part in tokens.split(rows)]
    sites = {
        site: [torch.cat([sites[site][layer] for sites, _ in parts]) for layer in range(len(parts[0][0][site]))]
        for site in parts[0][0]
    }
    return Recording(tokens, sites, parts[0][1])


def _record_part(
    model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, recorder: _Recorder
) -> tuple[dict[str, list[Tensor]], list[LayerCall]]:
    calls: list[LayerCall] = []
    with _watch(model, anatomy, recorder, calls):
        embedding = next(model.get_input_embeddings().parameters())
        model.get_submodule(anatomy.decoder)(input_ids=tokens.to(embedding.device), use_cache=False, rules=recorder)
    return recorder.kept, calls


@contextmanager
def _watch(model: PreTrainedModel, anatomy: Anatomy, recorder: _Recorder, calls: list[LayerCall]) -> Iterator[None]:
    """Hooks for what does not pass the attention function; gone when the block ends, however it ends."""
    handles = []

    def keep(site: str, value: Tensor) -> None:
        recorder.kept.setdefault(site, []).append(value.detach())

    def before_layer(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(inspect.signature(type(module).forward).bind(module, *args, **kwargs).arguments)
        del given["self"]
        keep("resid", given.pop("hidden_states"))
        rest = given.pop("kwargs", {})
        calls.append(layer_call(type(module).__name__, {**given, **rest}))

    def after_last(module: nn.Module, args: tuple[Any, ...]) -> None:
        keep("resid", args[0])

    try:
        for layer in anatomy.layer_modules(model):
            handles.append(layer.register_forward_pre_hook(before_layer, with_kwargs=True))
            for site in recorder.wanted & {"q", "k", "v", "mlp_out"}:
                handles.append(_on_output(layer, anatomy, site, lambda value, site=site: keep(site, value)))
            if "z" in recorder.wanted:
                output = layer.get_submodule(anatomy.output)
                handles.append(output.register_forward_hook(lambda _module, _args, out: keep("attention_output", out)))
        handles.append(model.get_submodule(anatomy.final_norm).register_forward_pre_hook(after_last))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _on_output(layer: nn.Module, anatomy: Anatomy, site: str, act: Any) -> Any:
    path = anatomy.mlp if site == "mlp_out" else {"q": anatomy.q, "k": anatomy.k, "v": anatomy.v}[site].module

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        act(site_of_output(anatomy, site, output))

    return layer.get_submodule(path).register_forward_hook(hook)


def site_of_output(anatomy: Anatomy, site: str, output: Any) -> Tensor:
    """A projection's or an MLP's output as the site: (row, head, token, head_dim) or (row, token, hidden)."""
    value: Tensor = output[0] if isinstance(output, tuple) else output
    if site == "mlp_out":
        return value
    part = {"q": anatomy.q, "k": anatomy.k, "v": anatomy.v}[site]
    per_head: Tensor = value[..., part.start : part.stop].unflatten(-1, (-1, anatomy.head_dim)).transpose(1, 2)
    return per_head


PASSED = ("attention_mask", "position_embeddings", "position_ids", "cache_position")


def layer_call(name: str, kwargs: dict[str, Any]) -> LayerCall:
    """The keywords of a layer's call that a replay repeats; one row of each, because all prompts are alike in them."""
    call: LayerCall = {}
    for key, value in kwargs.items():
        if key in PASSED:
            call[key] = _one_row(value)
        elif isinstance(value, Tensor):
            raise SurgeryError(
                f"{name} is called with a tensor {key!r} that a replay would not know how to cut; this architecture "
                "needs support in rebinding/surgery/recording.py first"
            )
    return call


def _one_row(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_one_row(part) for part in value)
    if isinstance(value, Tensor) and value.ndim > 1:
        return value[:1]
    return value


def cut_call(call: LayerCall, start: int, stop: int, device: torch.device) -> LayerCall:
    """A layer's keywords for a window of tokens: queries `start..stop`, keys `0..stop`."""

    def cut(key: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(cut(key, part) for part in value)
        if not isinstance(value, Tensor):
            return value
        value = value.to(device)
        if key == "attention_mask":
            return value[:, :, start:stop, :stop]
        if key == "position_embeddings":
            return value[:, start:stop]
        return value[..., start:stop]

    return {key: cut(key, value) for key, value in call.items()}
