"""Does a layer pass anything from token to token besides attention, or from one call to the next?

A recording holds what attention carries: keys and values. A replay lacks everything else: a recurrent or
convolutional state, a token shift, a mean over tokens, keys of another layer. They are refused here by structure, not
by the size of an error: NaN passes through every product, also through a weight of zero, so that what mixes tokens
shows at any scale.

1. Half of the tokens of a layer's input become NaN, then the other half, with every head's output held. NaN may come
   out at these tokens only, and so may it in the queries, keys and values; and all of these have to be NaN there, or
   they come from somewhere else.
2. Then every layer runs alone, the last one first, on what it was given in the recorded run. It has to give what it
   gave, whatever ran before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.subjects.allowance import Allowance, farthest_token
from rebinding.subjects.errors import MixesTokens, ReplayDiffers
from rebinding.subjects.probe import Watched
from rebinding.subjects.repeat import LACKING
from rebinding.surgery import Anatomy
from rebinding.surgery.attention import SharedPrefix, Stage
from rebinding.surgery.recording import Recording, cut_call

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ENOUGH = 48
"""Tokens of the recorded prompt that layers are run on alone; what is at work within a layer is so in these too."""
PER_TOKEN: tuple[Stage, ...] = ("q_rot", "keys", "values")
"""Stages of attention that belong to one token each."""


@dataclass(eq=False)
class HeldHeads:
    """The rules of one layer's run in which every head's z is held; queries, keys and values are kept on the way."""

    z: Tensor
    stages: dict[Stage, Tensor] = field(default_factory=dict)

    skip = 0

    def see(self, layer: int, stage: Stage, value: Tensor) -> Tensor:
        if stage in PER_TOKEN:
            self.stages[stage] = value
        return self.z.to(value) if stage == "z" else value

    def per_query_head(self, layer: int) -> bool:
        return False

    def prefix(self, layer: int) -> SharedPrefix | None:
        return None


@torch.no_grad()
def check_mixing(
    model: PreTrainedModel, anatomy: Anatomy, recording: Recording, seen: Watched, allowance: Allowance
) -> None:
    """Refuse a model one of whose layers mixes tokens besides attention, or depends on more than it is given."""
    layers = anatomy.layer_modules(model)
    for number, layer in enumerate(layers):
        half = _draw_half(begin_of(recording, number).shape[1], seed=number)  # (token,), other ones in every layer
        for poisoned in (half, ~half):
            _check_tokens_apart(model, recording, number, layer, poisoned)
    for number in reversed(range(anatomy.n_layers)):
        alone = run_alone(layers[number], recording, number, begin_of(recording, number))
        written = seen.modules[number, "written"][:, :ENOUGH].to(alone.device)
        token, off, allowed = farthest_token(alone, written, allowance.one_layer)
        if not off <= allowed:
            raise ReplayDiffers(
                f"{_name(model, layers[number], number)}, run alone on the input that it had, is off at token {token} "
                f"by {off:.2g} from what it gave (allowed: {allowed:.2g}). {LACKING}"
            )


REFUSED = (
    "A replay would lack it, so edits of this model would not be exact. Pass a model whose layers mix tokens by "
    "attention alone, each with its own keys and values."
)


def begin_of(recording: Recording, number: int) -> Tensor:
    """A layer's recorded input (row, token, hidden) at the first tokens."""
    return recording.sites["resid"][number][:, :ENOUGH]


def run_alone(layer: nn.Module, recording: Recording, number: int, hidden: Tensor, rules: Any = None) -> Tensor:
    """A layer's output (row, token, hidden) from an input over the first tokens, called as in the recorded run."""
    call = cut_call(recording.calls[number], 0, hidden.shape[1], hidden.device)
    out: Any = layer(hidden, **call, use_cache=False, rules=rules)
    value: Tensor = out[0] if isinstance(out, tuple) else out
    return value


def _check_tokens_apart(
    model: PreTrainedModel, recording: Recording, number: int, layer: nn.Module, poisoned: Tensor
) -> None:
    hidden = begin_of(recording, number).clone()
    hidden[:, poisoned] = torch.nan
    rules = HeldHeads(recording.sites["z"][number][:, :, :ENOUGH])
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
    handles: list[Any] = []

    def watch(path: str, module: nn.Module) -> None:
        def hook(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            given = [value for value in (*args, *kwargs.values()) if _is_by_token(value, poisoned)]
            out = output[0] if isinstance(output, tuple) else output
            is_clean = bool(given) and not any(_leaks(value, poisoned) for value in given)
            if is_clean and _is_by_token(out, poisoned) and _leaks(out, poisoned):
                leaks.append(f"{path} ({type(module).__name__})")

        handles.append(module.register_forward_hook(hook, with_kwargs=True))

    try:
        for path, module in layer.named_modules():
            if path:
                watch(path, module)
        yield leaks
    finally:
        for handle in handles:
            handle.remove()


def _is_by_token(value: Any, poisoned: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim >= 3 and value.shape[1] == poisoned.numel()


def _name(model: PreTrainedModel, layer: nn.Module, number: int) -> str:
    return f"{type(model).__name__}: layer {number} ({type(layer).__name__})"
