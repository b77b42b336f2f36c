"""A short random prompt, the activations of a model that runs on it, and how far rounding may move them.

**Rounding**: the precision in which two computations are compared, and the difference that the order of sums may make.

In bfloat16 logits of 30 are an eighth apart, and two correct orders of summation may differ by several eighths: a
comparison there could not see differences as large as those that decide claims. The same weights in float32 give the
same function without that noise. A difference only in 16 bits is rounding; a difference in float32 is a mistake.

Layers are converted to float32 one at a time, while they run, so the model needs memory for one more layer and no
second copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy, End
from rebinding.surgery.calling import forget_lengths, watch_module

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LENGTH = 100
"""The length of a real prompt; a model may fail at this length and not at a dozen tokens."""
SHORT = 12
"""The length of a short prompt, enough to distinguish sites."""
LONGEST = 256
"""A sliding window up to this length is exceeded by the probe, by two tokens."""


def draw_tokens(model: PreTrainedModel, anatomy: Anatomy) -> Tensor:
    """Random tokens (1, token), the same every time, without special tokens."""
    bound = [size + 2 for size in {part.mask.size for part in anatomy.parts} if size is not None and size <= LONGEST]
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    length = min(max([LENGTH, *bound]), longest or LONGEST)
    ordinary = _ordinary_ids(model, anatomy)
    dice = torch.Generator().manual_seed(0)
    return torch.tensor(ordinary)[torch.randint(len(ordinary), (1, length), generator=dice)]


def exchange_tokens(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, last: int) -> Tensor:
    """The same prompts with each of their `last` tokens replaced by another one."""
    ordinary = _ordinary_ids(model, anatomy)
    after = {token: ordinary[(place + 1) % len(ordinary)] for place, token in enumerate(ordinary)}
    exchanged = tokens.clone()
    exchanged[:, -last:] = torch.tensor([[after[token] for token in row] for row in tokens[:, -last:].tolist()])
    return exchanged


def _ordinary_ids(model: PreTrainedModel, anatomy: Anatomy) -> list[int]:
    return sorted(set(range(anatomy.vocabulary)) - _special_ids(model.config.to_dict()))


def _special_ids(config: dict[str, Any]) -> set[int]:
    """The ids that a configuration, or one inside it, names: beginnings, ends, padding, images."""
    ids: set[int] = set()
    for key, value in config.items():
        if isinstance(value, dict):
            ids |= _special_ids(value)
        elif str(key).endswith(("_token_id", "_token_index")) and value is not None:
            ids |= set(value) if isinstance(value, list) else {int(value)}
    return ids


@dataclass(eq=False)
class ModuleActivations:
    """Inputs and outputs of modules, by (layer, name).

    Layer `n_layers` holds the output of the last layer, under `resid`.
    """

    modules: dict[tuple[int, str], Tensor] = field(default_factory=dict)
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def token_device(model: PreTrainedModel) -> torch.device:
    """The device of the embedding, where token ids go."""
    table: Any = model.get_input_embeddings()
    device: torch.device = table.weight.device
    return device


@torch.no_grad()
def forward(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor) -> ModuleActivations:
    """Run the model on its current attention, and keep its activations."""
    forget_lengths(model)
    with watch_modules(model, anatomy) as activations:
        activations.logits = model(input_ids=tokens.to(token_device(model)), use_cache=False).logits
    return activations


@contextmanager
def watch_modules(model: PreTrainedModel, anatomy: Anatomy) -> Iterator[ModuleActivations]:
    """Keep the activations while a block runs the model."""
    activations = ModuleActivations()

    def keep(name: str, number: int, layer: nn.Module, path: str, end: End) -> None:
        def see(value: Any) -> None:
            value = value[0] if isinstance(value, tuple) else value
            activations.modules[number, name] = anatomy.from_layer(value) if name in ("resid", "written") else value

        watch_module(hooks, layer, path, end, see)

    with ExitStack() as hooks:
        for number, layer in enumerate(anatomy.layer_modules(model)):
            parts = anatomy.parts[number]
            keep("resid", number, layer, "", "input")
            keep("written", number, layer, "", "output")
            keep("read", number, layer, parts.q.module if parts.n_heads else parts.mixer, "input")
            keep("attended", number, layer, parts.output or parts.mixer, "output")
            for letter in ("q", "k", "v") if parts.n_heads else ():
                if parts.projection(letter).module:
                    keep(letter, number, layer, parts.projection(letter).module, parts.projection(letter).end)
            if parts.n_heads:
                keep("z", number, layer, parts.output, "input")
        yield activations
        activations.modules[anatomy.n_layers, "resid"] = activations.modules[anatomy.n_layers - 1, "written"]


WORDS = 4096
"""Tokens of the vocabulary that are compared: a head of 256,000 in float32 would be the largest tensor of all."""
ROOM = 128
"""How much a model may magnify rounding. Scores far apart, norms of small numbers and short windows do; on random
models made for it, with products that are ten units in the last place off, the largest observed factor is 51
(`docs/decisions/self-check.md`)."""


@contextmanager
def replace_weights(weights: Iterable[Tensor], make: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
    """Replace weights for the length of a block, by `make(number, values)`."""
    originals = [(weight, weight.data) for weight in weights]
    try:
        for number, (weight, data) in enumerate(originals):
            weight.data = make(number, data)
        yield
    finally:
        for weight, data in originals:
            weight.data = data


def raise_weights(module: nn.Module, words: int | None = None) -> AbstractContextManager[None]:
    """Convert a module's 16-bit weights to float32 for the length of a block; if given, only the first `words` rows."""
    return replace_weights(filter(_is_short, module.parameters()), lambda _, data: data[:words].float())


@contextmanager
def in_float32(model: PreTrainedModel, anatomy: Anatomy, *, has_parts: bool = False) -> Iterator[None]:
    """Every layer, the final norm and `WORDS` rows of the head compute in float32 while they run.

    With `has_parts`, so does every module of a layer that is called alone. A model in float32 is left unchanged.
    """
    if not any(map(_is_short, model.parameters())):
        yield
        return
    layers = anatomy.layer_modules(model)
    parts: list[tuple[nn.Module, int | None]] = [(layer, None) for layer in layers]
    parts += [(module, None) for layer in layers for module in layer.modules() if has_parts and module is not layer]
    parts += [(model.get_submodule(anatomy.final_norm), None), (model.get_submodule(anatomy.head), WORDS)]
    with ExitStack() as stack:
        for part, words in parts:
            _raise_while_it_runs(part, words, stack)
        yield


def _raise_while_it_runs(module: nn.Module, words: int | None, stack: ExitStack) -> None:
    """Convert a module to float32 during each of its calls, until the stack is closed."""
    running = stack.enter_context(ExitStack())

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        running.enter_context(raise_weights(module, words))
        return tuple(map(_float, args)), {key: _float(value) for key, value in kwargs.items()}

    stack.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
    stack.enter_context(module.register_forward_hook(lambda *_: running.close()))


def _is_short(weight: Tensor) -> bool:
    return weight.is_floating_point() and weight.element_size() < torch.finfo(torch.float32).bits // 8


def _float(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_float, value))
    return value.float() if isinstance(value, Tensor) and _is_short(value) else value


def size(values: Tensor) -> float:
    """The root mean square. Rounding affects all entries alike, so the largest entry would be chance."""
    return float(values.float().square().mean().sqrt())


@dataclass(frozen=True)
class Allowance:
    """The difference that rounding may make in a model of this depth and width, computed in float32.

    The partial sums of K terms are rounded K times, up or down by chance: a random walk. Two kernels that sum in
    different orders differ by about sqrt(K) / 4 units in the last place. Each of the 2 L branches of the
    residual stream (attention and MLP of every layer) adds such a difference, again by chance: a walk of 2 L steps.
    Relative to the size of the compared values, that is

        ROOM * eps * sqrt(K) / 4 * sqrt(2 L)

    with K the longest sum in a layer.
    """

    depth: int
    width: int

    @classmethod
    def of_model(cls, model: PreTrainedModel, anatomy: Anatomy) -> Allowance:
        """The depth is the number of layers, the width that of the widest matrix in one of them."""
        first = anatomy.layer_modules(model)[0]
        return cls(anatomy.n_layers, max(max(weight.shape) for weight in first.parameters()))

    @property
    def one_layer(self) -> Allowance:
        """The allowance for one layer with the same input."""
        return Allowance(1, self.width)

    @property
    def relative(self) -> float:
        """The allowance relative to the size of the compared values."""
        return ROOM * torch.finfo(torch.float32).eps * math.sqrt(self.width) / 4 * math.sqrt(2 * self.depth)

    def of(self, like: Tensor) -> float:
        """The allowance in the units of these values."""
        return self.relative * size(like)

    def near(self, a: Tensor, b: Tensor) -> bool:
        """Whether `a` equals `b` up to rounding; NaN never does."""
        return a.shape == b.shape and size(a - b) <= self.of(b)


class Difference(NamedTuple):
    """The token at which two computations differ most, their difference there, and the allowed difference."""

    token: int
    off: float
    allowed: float


def farthest_token(actual: Tensor, expected: Tensor, allowance: Allowance) -> Difference:
    """The token at which two computations (row, token, ...) differ most; NaN counts as infinite."""
    off = (actual.float() - expected.float()).square().flatten(2).mean(dim=(0, 2)).sqrt()  # (token,)
    allowed = allowance.relative * expected.float().square().flatten(2).mean(dim=(0, 2)).sqrt()  # (token,)
    token = int(torch.where(off.isnan(), torch.inf, off - allowed).argmax())
    return Difference(token, float(off[token]), float(allowed[token]))
