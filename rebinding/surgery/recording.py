"""Recordings of unedited runs, from which edited runs continue."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.layers import LayerRead
from rebinding.surgery.sites import Site, SurgeryError

LayerCall = dict[str, Any]
"""The keywords with which the model calls one of its layers."""
Key: TypeAlias = tuple[tuple[int, ...], bytes, frozenset[str]]


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """An unedited run over prompts of equal length.

    `sites[site][layer]` is (prompt, head, token, width), without the head axis where a site has none, and empty at
    layers that lack the site. `resid`, `keys` and `values` (after norm and RoPE, per KV head) are always recorded, and
    what a layer's mixer takes in (`mixer_input`), and raw keys and values that other layers reuse (`shared_k`,
    `shared_v`): a replay starts from them. `calls` are the keywords of each layer's call, so that a replay calls the
    layers as the model does. `spots` are reads of the unedited run, one line a prompt, for later runs with these reads.
    """

    tokens: Tensor
    sites: dict[str, list[Tensor]]
    calls: list[LayerCall]
    spots: tuple[tuple[LayerRead, Tensor], ...] = ()

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

    def lookup(self, read: LayerRead, source: Tensor) -> Callable[[Tensor], Tensor] | None:
        """A function from rows to the unedited values of a read; None if they were not kept. Rows continue `source`."""
        if self.has(read.site):
            recorded = self.sites[read.site][read.layer]
            return lambda rows: gather(recorded, source[rows], read, rows)
        rows = torch.arange(source.numel())
        for spot, values in self.spots:
            if (spot.site, spot.layer) == (read.site, read.layer) and _same_heads(spot, read):
                recorded_at, read_at = lines(spot.positions, source), lines(read.positions, rows)
                if recorded_at.shape == read_at.shape and torch.equal(recorded_at, read_at):
                    return partial(_lines_of, values, source)
        return None

    def bytes(self) -> int:
        """Memory that the kept tensors take."""
        return sum(tensor.nbytes for layers in self.sites.values() for tensor in layers)


class Recordings:
    """A cache of the recordings used last, up to `limit` bytes: many experiments share their clean runs.

    The key is a whole batch: in another batch the same prompt may be rounded differently. The model must not change
    meanwhile.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.entries: OrderedDict[Key, RecordedRun] = OrderedDict()

    def get(self, tokens: Tensor, keep: Collection[Site], make: Callable[[], RecordedRun]) -> RecordedRun:
        """The recording of these prompts with these sites kept, made if it is not cached."""
        key = (tuple(tokens.shape), tokens.cpu().numpy().tobytes(), frozenset(keep))
        recording = self.entries.pop(key, None)
        if recording is None:
            recording = make()
            size = recording.bytes()
            while self.entries and size + self.bytes() > self.limit:
                self.entries.popitem(last=False)
            if size > self.limit:
                return recording
        self.entries[key] = recording
        return recording

    def bytes(self) -> int:
        """Memory that the recordings take."""
        return sum(recording.bytes() for recording in self.entries.values())


def _lines_of(values: Tensor, source: Tensor, rows: Tensor) -> Tensor:
    return values[source[rows].to(values.device)]


def _same_heads(spot: LayerRead, read: LayerRead) -> bool:
    if spot.heads is None or read.heads is None:
        return spot.heads is read.heads
    return bool(spot.heads.shape[0] == 1 and torch.equal(spot.heads, read.heads))


def lines(table: Tensor, rows: Tensor) -> Tensor:
    """The lines of an index table for some rows; a table of one line serves all."""
    return table.expand(rows.numel(), -1) if table.shape[0] == 1 else table[rows]


def gather(values: Tensor, places: Tensor, read: LayerRead, rows: Tensor, *, start: Tensor | None = None) -> Tensor:
    """A read's heads and positions of `values` (place, [head,] token, width), from token 0 or `start` (row,) on."""
    positions = lines(read.positions, rows)  # (row, position)
    positions = (positions if start is None else positions - start[:, None]).to(values.device)
    at = places.to(values.device)
    if read.heads is None:
        return values[at[:, None], positions]  # (row, position, width)
    heads = lines(read.heads, rows).to(values.device)  # (row, head)
    return values[at[:, None, None], heads[:, :, None], positions[:, None, :]]  # (row, head, position, width)


def site_of_module(parts: LayerParts, site: str, value: Any, rows: int) -> Tensor:
    """What a module takes or puts out, as the site: (row, head, token, head_dim) or (row, token, hidden)."""
    tensor: Tensor = value[0] if isinstance(value, tuple) else value
    if site == "mlp_out":
        return tensor if tensor.ndim > 2 else tensor.view(rows, -1, tensor.shape[-1])
    return parts.projection(site).heads(tensor, parts.head_dim)


def with_site(parts: LayerParts, site: str, raw: Any, edited: Tensor) -> Any:
    """What a module takes or puts out, with the site replaced."""
    value = raw[0] if isinstance(raw, tuple) else raw
    result = edited.view_as(value) if site == "mlp_out" else parts.projection(site).replaced(value, edited)
    return (result, *raw[1:]) if isinstance(raw, tuple) else result


LAYER_ARGUMENTS = ("attention_mask", "position_embeddings", "position_ids", "cache_position")
"""Keywords with one entry per token: a replay cuts them to its window."""
OWN = ("rules", "use_cache", "shared_kv_states")
"""Keywords that every replay sets for itself."""


@dataclass(frozen=True)
class TokensBefore:
    """Takes the place of a cache: it says how many tokens came before, and keeps no keys and values."""

    count: int

    def get_seq_length(self, layer: int = 0) -> int:
        """How many tokens came before."""
        return self.count

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """The keys and values as they are."""
        return keys, values


@dataclass(frozen=True, eq=False)
class OfPrompts:
    """An argument of a layer's call that depends on the prompt: (prompt, token, width)."""

    values: Tensor


def layer_call(name: str, kwargs: dict[str, Any], anatomy: Anatomy) -> LayerCall:
    """The keywords of a layer's call that a replay repeats; of `LAYER_ARGUMENTS` one row, since all rows are equal."""
    call = {
        key: _one_row(value) if key in LAYER_ARGUMENTS else value for key, value in kwargs.items() if key not in OWN
    }
    if anatomy.counts_tokens:
        call["cache" if "cache" in call else "past_key_values"] = TokensBefore(0)  # transformers 5.24 renamed it
    for key in call.keys() & set(anatomy.prompt_inputs):
        call[key] = None if call[key] is None else OfPrompts(call[key])
    for key in call.keys() - set(LAYER_ARGUMENTS):
        if not _is_plain(call[key]):
            raise SurgeryError(
                f"{name} is called with {key!r}, a {type(call[key]).__name__} that a replay cannot cut or repeat; "
                "this architecture needs support in rebinding/surgery/recording.py first"
            )
    return call


def join_calls(calls: Sequence[LayerCall]) -> LayerCall:
    """The call of one layer over all prompts, from its calls over some of them."""
    joined = dict(calls[0])
    for key, value in joined.items():
        if isinstance(value, OfPrompts):
            joined[key] = OfPrompts(torch.cat([call[key].values for call in calls]))
    return joined


def _is_plain(value: Any) -> bool:
    """Whether a value is a number, flag, string or None, or a list of these: the same for any window of tokens."""
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(
        value, (bool, int, float, str, torch.dtype, torch.device, TokensBefore, OfPrompts)
    )


def _one_row(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_one_row(part) for part in value)
    if isinstance(value, Tensor) and value.ndim > 1:
        return value[:1]
    return value


def cut_call(call: LayerCall, start: int, stop: int, device: torch.device, source: Tensor | None = None) -> LayerCall:
    """A layer's keywords for a window of tokens: queries `start..stop`, keys `0..stop`.

    Rows continue the recorded prompts `source`: all prompts in their order, if it is None.
    """

    def cut(key: str, value: Any) -> Any:
        if isinstance(value, TokensBefore):
            return TokensBefore(start)
        if isinstance(value, OfPrompts):
            rows = value.values if source is None else value.values[source.to(value.values.device)]
            return rows[:, start:stop].to(device)
        if key not in LAYER_ARGUMENTS:
            return value
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
