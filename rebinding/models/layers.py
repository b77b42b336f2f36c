"""Layers run one by one: does one pass anything from token to token besides attention, or from one call to the next?

A recording holds what attention carries: keys and values. A replay lacks everything else: a recurrent or
convolutional state, a token shift, a mean over tokens, keys of another layer. They are refused here by structure, not
by the size of an error: NaN passes through every product, also through a weight of zero, so that what mixes tokens
shows at any scale.

1. Half of the tokens of a layer's input become NaN, then the other half, with every head's output held. NaN may come
   out at these tokens only, and so may it in the queries, keys and values; and all of these have to be NaN there, or
   they come from somewhere else.
2. Then every layer runs alone, the last one first, on what it was given in the recorded run. It has to give what it
   gave, whatever ran before it.
3. A gate, a table of positions or a branch that a model adds and has hardly trained changes its output by less than
   rounding, and a comparison passes. So every layer's weights are drawn anew, of ordinary size. Then it runs over the
   prompt, and over its end alone behind recorded keys and values, as a replay runs it: both have to give the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.models.errors import MixesTokens, ReplayDiffers
from rebinding.models.probe import Watched
from rebinding.models.rounding import Allowance, Difference, farthest_token, replace_weights
from rebinding.surgery import Anatomy
from rebinding.surgery.attention import SharedPrefix, Stage
from rebinding.surgery.recording import Recording, cut_call

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENOUGH = 48
"""Tokens of the recorded prompt that layers are run on alone; what is at work within a layer is so in these too."""
POOL = (1 << 20) + 7
"""Random numbers that are drawn; larger weights repeat them, at other places of every row."""
PER_TOKEN: tuple[Stage, ...] = ("q_rot", "keys", "values")
"""Stages of attention that belong to one token each."""
REFUSED = (
    "A replay would lack it, so edits of this model would not be exact. Pass a model whose layers mix tokens by "
    "attention alone, each with its own keys and values."
)
LACKING = (
    "It depends on something that a replay does not give it as the model does: a keyword, positions that a layer "
    "counts for itself, or what another layer or an earlier call left behind. Its edits would not be exact. What is "
    "kept of a layer's call is decided in rebinding/surgery/recording.py."
)


@dataclass(eq=False)
class LayerRules:
    """The rules of one layer's run: queries, keys and values are kept on the way. If given, `z` takes the place of all
    heads' outputs, and `before` stands before the keys and values."""

    z: Tensor | None = None
    before: SharedPrefix | None = None
    stages: dict[Stage, Tensor] = field(default_factory=dict)

    skip = 0

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        if stage in PER_TOKEN:
            self.stages[stage] = value
        return self.z.to(value) if stage == "z" and self.z is not None else value

    def per_query_head(self, layer: int) -> bool:
        return False

    def prefix(self, layer: int) -> SharedPrefix | None:
        return self.before


@torch.no_grad()
def check_mixing(
    model: PreTrainedModel, anatomy: Anatomy, recording: Recording, seen: Watched, allowance: Allowance
) -> None:
    """Refuse a model one of whose layers mixes tokens besides attention, or depends on more than it is given."""
    layers = anatomy.layer_modules(model)
    for number, layer in enumerate(layers):
        half = _draw_half(layer_input(recording, number).shape[1], seed=number)  # (token,), other ones in every layer
        for poisoned in (half, ~half):
            _check_tokens_apart(model, recording, number, layer, poisoned)
    for number in reversed(range(anatomy.n_layers)):
        alone = run_alone(layers[number], recording, number, layer_input(recording, number))
        written = seen.modules[number, "written"][:, :ENOUGH].to(alone.device)
        where = f"{_name(model, layers[number], number)}, run alone on the input that it had,"
        check_same(where, farthest_token(alone, written, allowance.one_layer), "what it gave")


@torch.no_grad()
def check_windows(model: PreTrainedModel, anatomy: Anatomy, recording: Recording, allowance: Allowance) -> None:
    """Refuse a model one of whose layers, with other weights, computes something else over a window of tokens."""
    for number, layer in enumerate(anatomy.layer_modules(model)):
        begin = 1 + 37 * number % (layer_input(recording, number).shape[1] - 1)  # another one in every layer
        with redraw_weights(layer, seed=number):
            whole, window = _whole_and_window(layer, recording, number, begin)
        where = f"{_name(model, layer, number)}, with its weights drawn anew and run from token {begin} on,"
        difference = farthest_token(window, whole[:, begin:], allowance.one_layer)
        check_same(where, difference, "its run over all tokens", first=begin)


def layer_input(recording: Recording, number: int) -> Tensor:
    """A layer's recorded input (row, token, hidden) at the first tokens."""
    return recording.sites["resid"][number][:, :ENOUGH]


def run_alone(
    layer: nn.Module, recording: Recording, number: int, hidden: Tensor, rules: LayerRules | None = None, begin: int = 0
) -> Tensor:
    """A layer's output (row, token, hidden) from token `begin` of an input on, called as in the recorded run."""
    call = cut_call(recording.calls[number], begin, hidden.shape[1], hidden.device)
    out: Any = layer(hidden[:, begin:], **call, use_cache=False, rules=rules)
    value: Tensor = out[0] if isinstance(out, tuple) else out
    return value


def check_same(where: str, difference: Difference, other: str, first: int = 0) -> None:
    """Refuse a model that gives something else when it is run again; tokens are counted from `first`."""
    token, off, allowed = difference
    if not off <= allowed:
        raise ReplayDiffers(
            f"{where} is off by {off:.2g} at token {first + token} from {other} (allowed: {allowed:.2g}). {LACKING}"
        )


def _check_tokens_apart(
    model: PreTrainedModel, recording: Recording, number: int, layer: nn.Module, poisoned: Tensor
) -> None:
    hidden = layer_input(recording, number).clone()
    hidden[:, poisoned] = torch.nan
    rules = LayerRules(recording.sites["z"][number][:, :, :ENOUGH])
    with _first_leak(layer, poisoned) as leaks:
        out = run_alone(layer, recording, number, hidden, rules)
    per_token = {  # (row, token, width)
        stage: value.transpose(1, 2).flatten(2) for stage, value in rules.stages.items()
    }
    where = _name(model, layer, number)
    if any(_leaks(value, poisoned) for value in [*per_token.values(), out]):
        by = next(iter(leaks), "its own forward")
        raise MixesTokens(
            f"{where} mixes tokens by {by}, besides attention: what it carries on is not recorded. {REFUSED}"
        )
    for stage, value in per_token.items():
        if not bool(value[:, poisoned].isnan().all()):
            raise MixesTokens(f"{where}: its {stage} do not come from its own input. {REFUSED}")


def _draw_half(length: int, *, seed: int) -> Tensor:
    """Flags (token,) of half of the tokens, at random, so that any distance lies between two of different halves."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    flags = torch.zeros(length, dtype=torch.bool)
    flags[order[: length // 2]] = True
    return flags


def _leaks(value: Tensor, poisoned: Tensor) -> bool:
    """Whether a value (row, token, ...) is NaN at a token that was left alone."""
    return not bool(value[:, ~poisoned].isfinite().all())


@contextmanager
def _first_leak(layer: nn.Module, poisoned: Tensor) -> Iterator[list[str]]:
    """The modules below a layer that took in NaN at the poisoned tokens alone and put it out at others, in order."""
    leaks: list[str] = []

    def watch(path: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            given = [value for value in (*args, *kwargs.values()) if _is_by_token(value, poisoned)]
            out = output[0] if isinstance(output, tuple) else output
            is_clean = bool(given) and not any(_leaks(value, poisoned) for value in given)
            if is_clean and _is_by_token(out, poisoned) and _leaks(out, poisoned):
                leaks.append(f"{path} ({type(module).__name__})")

        return module.register_forward_hook(hook, with_kwargs=True)

    with ExitStack() as hooks:
        for path, module in layer.named_modules():
            if path:
                hooks.enter_context(watch(path, module))
        yield leaks


def _is_by_token(value: Any, poisoned: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim >= 3 and value.shape[1] == poisoned.numel()


def _name(model: PreTrainedModel, layer: nn.Module, number: int) -> str:
    return f"{type(model).__name__}: layer {number} ({type(layer).__name__})"


def _whole_and_window(layer: nn.Module, recording: Recording, number: int, begin: int) -> tuple[Tensor, Tensor]:
    """A layer's output (row, token, hidden) over a prompt, and over its tokens from `begin` on as a replay runs it."""
    hidden, rules = layer_input(recording, number), LayerRules()
    whole = run_alone(layer, recording, number, hidden, rules)
    keys, values = (rules.stages[stage][:, :, :begin] for stage in ("keys", "values"))
    behind = LayerRules(before=SharedPrefix(keys, values, None, hidden.shape[0]))
    return whole, run_alone(layer, recording, number, hidden, behind, begin=begin)


def redraw_weights(layer: nn.Module, *, seed: int) -> AbstractContextManager[None]:
    """Random weights in a layer for the length of a block: matrices that keep sizes, vectors around 1."""
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(seed))
    weights = (weight for weight in layer.parameters() if weight.is_floating_point())
    return replace_weights(weights, lambda number, data: _drawn_like(data, pool.roll(7919 * number)))


def _drawn_like(data: Tensor, pool: Tensor) -> Tensor:
    pool = pool.to(data)  # first, so that the repeating is done where the weights are
    values = pool.repeat(math.ceil(data.numel() / POOL))[: data.numel()].view(data.shape)
    return values / math.sqrt(data.shape[-1]) if data.ndim > 1 else 1 + values.clamp(-2, 2) / 4
