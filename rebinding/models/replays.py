"""Check that replays are exact: layers mix tokens by attention alone, keep no state, and give their own numbers again.

A recording holds keys and values. A replay lacks everything else: a recurrent or convolutional state, a token shift, a
mean over tokens, keys of another layer. Models with these are refused by structure, not by the size of an error: NaN
passes through every product, also through a weight of zero, so token mixing shows at any scale.

1. Half of the tokens of a layer's input become NaN, then the other half, with every head's output fixed. Output,
   queries, keys and values may be NaN at these tokens only; and queries, keys and values must be NaN there, or they
   have another source.
2. Every layer runs alone, the last one first, on its input of the recorded run. Its output must be the recorded one,
   whatever ran before it.
3. A gate, a table of positions or a branch that is hardly trained changes the output by less than rounding, and a
   comparison passes. So every layer gets random weights of ordinary size. It runs over the prompt, and over the end of
   the prompt with recorded keys and values, as in a replay: both outputs must be the same.
4. Rows with an edit too small to change a number are replayed from several layers and tokens: a keyword that was not
   recorded, positions that a layer counts itself, or computation between layers shows. Their residuals are compared
   with those of the model's own forward on its own attention, from the edited token to the last one.
5. Noise at every place of a site must change the output of the last layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rebinding.models.errors import FailedSelfCheck, UnsupportedArchitecture
from rebinding.models.probe import Allowance, Difference, ModuleActivations, farthest_token, replace_weights, size
from rebinding.surgery import Anatomy, Edit, Read, Site, Surgeon, SurgeryError, TorchSurgeon, in_layer
from rebinding.surgery.attention import AttentionStage, SharedPrefix, UnknownAttention
from rebinding.surgery.calling import Keys, MixerRun, call_layer, watch_module
from rebinding.surgery.recording import RecordedRun, cut_call
from rebinding.surgery.replay import complete_keys
from rebinding.surgery.sites import HEADLESS, KEYED, SITES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

N_TOKENS = 48
"""Tokens of the recorded prompt in single-layer runs; they suffice to show what a layer does."""
POOL = (1 << 20) + 7
"""Size of the pool of random numbers; larger weights repeat it, with another offset in every row."""
PER_TOKEN: tuple[AttentionStage, ...] = ("q_rot", "keys", "values")
"""Stages of attention that belong to one token each."""
CONSEQUENCE = (
    "A replay would lack it, so edits of this model would not be exact. Pass a model whose layers mix tokens by "
    "attention alone, each with its own keys and values."
)
CAUSES = (
    "The layer depends on something that a replay lacks: a keyword, positions that it counts itself, or state of "
    "another layer or an earlier call. Edits of this model would not be exact. rebinding/surgery/recording.py decides "
    "what is kept of a layer's call."
)
NULL_SHIFT = 1e-30
"""Not zero, so that the row is computed; too small to change any sum of float32."""
TOKENS = 4
"""Tokens at the end of a prompt at which every site is edited."""


@dataclass(eq=False)
class ReplayCheckRules:
    """The rules of one layer's run: queries, keys and values are kept. If given, `z` replaces all heads' outputs, and
    `shared_prefix` comes before the keys and values."""

    z: Tensor | None = None
    shared_prefix: SharedPrefix | None = None
    stages: dict[AttentionStage, Tensor] = field(default_factory=dict)

    skip = 0

    def see(self, layer: int, stage: AttentionStage, value: Tensor) -> Tensor:
        if stage in PER_TOKEN:
            self.stages[stage] = value
        return self.z.to(value) if stage == "z" and self.z is not None else value

    def per_query_head(self, layer: int) -> bool:
        return False

    def prefix(self, layer: int) -> SharedPrefix | None:
        return self.shared_prefix


@torch.no_grad()
def check_mixing(
    model: PreTrainedModel, anatomy: Anatomy, recording: RecordedRun, seen: ModuleActivations, allowance: Allowance
) -> None:
    """Refuse a model with a layer that mixes tokens besides attention, or depends on more than its input."""
    layers = anatomy.layer_modules(model)
    for number, layer in enumerate(layers):
        half = _draw_half(layer_input(recording, number).shape[1], seed=number)  # (token,), other ones in every layer
        for poisoned in (half, ~half):
            _check_token_mixing(model, anatomy, recording, number, layer, poisoned)
    for number in reversed(range(anatomy.n_layers)):
        actual = run_alone(layers[number], anatomy, recording, number, layer_input(recording, number))
        written = seen.modules[number, "written"][:, :N_TOKENS].to(actual.device)
        where = f"{_name(model, layers[number], number)}, run alone on its recorded input,"
        check_same(where, farthest_token(actual, written, allowance.one_layer), "its recorded output")


@torch.no_grad()
def check_windows(model: PreTrainedModel, anatomy: Anatomy, recording: RecordedRun, allowance: Allowance) -> None:
    """Refuse a model with a layer that, with random weights, gives another output over a window than over all."""
    for number, layer in enumerate(anatomy.layer_modules(model)):
        begin = 1 + 37 * number % (layer_input(recording, number).shape[1] - 1)  # another one in every layer
        with redraw_weights(layer, seed=number):
            full, window = _run_full_and_window(layer, anatomy, recording, number, begin)
        where = f"{_name(model, layer, number)}, with random weights and run from token {begin} on,"
        difference = farthest_token(window, full[:, begin:], allowance.one_layer)
        check_same(where, difference, "its run over all tokens", first=begin)


def layer_input(recording: RecordedRun, number: int) -> Tensor:
    """A layer's recorded input (row, token, hidden) at the first tokens."""
    return recording.sites["resid"][number][:, :N_TOKENS]


def run_alone(
    layer: nn.Module,
    anatomy: Anatomy,
    recording: RecordedRun,
    number: int,
    hidden: Tensor,
    rules: ReplayCheckRules | None = None,
    begin: int = 0,
    mixer: MixerRun | None = None,
) -> Tensor:
    """A layer's output (row, token, hidden) from token `begin` of an input on, called as in the recorded run."""
    call = cut_call(recording.calls[number], begin, hidden.shape[1], hidden.device)
    shared: dict[int, Keys] | None = {} if anatomy.shares_keys else None
    if shared is not None and not anatomy.parts[number].has_own_keys:
        prompts, tokens = torch.arange(recording.n_prompts), slice(begin, hidden.shape[1])
        complete_keys(shared, recording, anatomy.parts[number].key_layer, prompts, tokens)
    return call_layer(layer, anatomy, number, hidden[:, begin:], call, rules, shared=shared, mixer=mixer)


def check_same(where: str, difference: Difference, reference: str, first: int = 0) -> None:
    """Refuse a model whose rerun differs from the reference; tokens are counted from `first`."""
    token, off, allowed = difference
    if not off <= allowed:
        raise FailedSelfCheck(
            f"{where} is off by {off:.2g} at token {first + token} from {reference} (allowed: {allowed:.2g}). {CAUSES}"
        )


def _check_token_mixing(
    model: PreTrainedModel, anatomy: Anatomy, recording: RecordedRun, number: int, layer: nn.Module, poisoned: Tensor
) -> None:
    parts, hidden = anatomy.parts[number], layer_input(recording, number).clone()
    hidden[:, poisoned] = torch.nan
    rules = ReplayCheckRules(recording.sites["z"][number][:, :, :N_TOKENS] if parts.n_heads else None)
    mixer = MixerRun(output=recording.sites["attention_output"][number][:, :N_TOKENS]) if parts.mixer else None
    with _first_leak(layer, poisoned, besides=parts.mixer) as leaks:
        out = run_alone(layer, anatomy, recording, number, hidden, rules, mixer=mixer)
    per_token = {  # (row, token, width)
        stage: value.transpose(1, 2).flatten(2) for stage, value in rules.stages.items()
    }
    where = _name(model, layer, number)
    if any(_leaks(value, poisoned) for value in [*per_token.values(), out]):
        by = next(iter(leaks), "its own forward")
        raise UnsupportedArchitecture(
            f"{where} mixes tokens by {by}, besides attention: what it carries on is not recorded. {CONSEQUENCE}"
        )
    for stage, value in per_token.items():
        if stage != "q_rot" and not parts.has_own_keys:
            continue
        if not bool(value[:, poisoned].isnan().all()):
            raise UnsupportedArchitecture(f"{where}: its {stage} do not come from its own input. {CONSEQUENCE}")


def _draw_half(length: int, *, seed: int) -> Tensor:
    """Flags (token,) of a random half of the tokens, so that tokens of different halves are at all distances."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    flags = torch.zeros(length, dtype=torch.bool)
    flags[order[: length // 2]] = True
    return flags


def _leaks(value: Tensor, poisoned: Tensor) -> bool:
    """Whether a value (row, token, ...) is NaN at a token that was not poisoned."""
    return not bool(value[:, ~poisoned].isfinite().all())


@contextmanager
def _first_leak(layer: nn.Module, poisoned: Tensor, besides: str) -> Iterator[list[str]]:
    """The modules of a layer, in order, whose input is NaN at poisoned tokens only and whose output at others too;
    `besides` the mixer."""
    leaks: list[str] = []

    def watch(path: str, module: nn.Module) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: dict[str, Any], output: Any) -> None:
            inputs = [value for value in (*args, *kwargs.values()) if _has_token_axis(value, poisoned)]
            out = output[0] if isinstance(output, tuple) else output
            is_clean = bool(inputs) and not any(_leaks(value, poisoned) for value in inputs)
            if is_clean and _has_token_axis(out, poisoned) and _leaks(out, poisoned):
                leaks.append(f"{path} ({type(module).__name__})")

        return module.register_forward_hook(hook, with_kwargs=True)

    with ExitStack() as hooks:
        for path, module in layer.named_modules():
            if path and not (besides and path.startswith(besides)):
                hooks.enter_context(watch(path, module))
        yield leaks


def _has_token_axis(value: Any, poisoned: Tensor) -> bool:
    return isinstance(value, Tensor) and value.ndim >= 3 and value.shape[1] == poisoned.numel()


def _name(model: PreTrainedModel, layer: nn.Module, number: int) -> str:
    return f"{type(model).__name__}: layer {number} ({type(layer).__name__})"


def _run_full_and_window(
    layer: nn.Module, anatomy: Anatomy, recording: RecordedRun, number: int, begin: int
) -> tuple[Tensor, Tensor]:
    """A layer's output (row, token, hidden) over a prompt, and from token `begin` on as in a replay."""
    hidden, rules, mixer = layer_input(recording, number), ReplayCheckRules(), anatomy.parts[number].mixer
    inputs: list[Tensor] = []
    with ExitStack() as hooks:
        if mixer:
            watch_module(hooks, layer, mixer, "input", inputs.append)
        full = run_alone(layer, anatomy, recording, number, hidden, rules)
    if mixer:
        mixer_run = MixerRun(before=inputs[0][:, :begin])
        return full, run_alone(layer, anatomy, recording, number, hidden, begin=begin, mixer=mixer_run)
    keys, values = (rules.stages[stage][:, :, :begin] for stage in ("keys", "values"))
    window_rules = ReplayCheckRules(shared_prefix=SharedPrefix(keys, values, None, hidden.shape[0]))
    return full, run_alone(layer, anatomy, recording, number, hidden, window_rules, begin=begin)


def redraw_weights(layer: nn.Module, *, seed: int) -> AbstractContextManager[None]:
    """Random weights in a layer for the length of a block: matrices that preserve sizes, vectors around 1."""
    pool = torch.randn(POOL, generator=torch.Generator().manual_seed(seed))
    weights = (weight for weight in layer.parameters() if weight.is_floating_point())
    return replace_weights(weights, lambda number, data: _random_like(data, pool.roll(7919 * number)))


def _random_like(data: Tensor, pool: Tensor) -> Tensor:
    pool = pool.to(data)  # first, so that repeating runs on the weights' device
    values = pool.repeat(math.ceil(data.numel() / POOL))[: data.numel()].view(data.shape)
    return values / math.sqrt(data.shape[-1]) if data.ndim > 1 else 1 + values.clamp(-2, 2) / 4


def check_replay(surgeon: TorchSurgeon, recording: RecordedRun, own: Tensor, allowance: Allowance) -> None:
    """`own` (row, token, hidden) is the model's own final residual for the one prompt that was recorded."""
    for (layer, first), difference in compare_replays(surgeon, recording, own, allowance):
        where = f"{type(surgeon.model).__name__}: replayed from layer {layer}, token {first}, without a change, it"
        check_same(where, difference, "its own forward", first)


def compare_replays(
    surgeon: TorchSurgeon, recording: RecordedRun, own: Tensor, allowance: Allowance
) -> Iterator[tuple[tuple[int, int], Difference]]:
    """The largest difference of the replay's residual for each start; tokens are counted from the start."""
    for layer, first in starts(surgeon.anatomy.n_layers, recording.length):
        actual = replay_from(surgeon, recording, layer, first)
        yield (layer, first), farthest_token(actual, own[:, first:].to(actual.device), allowance)


def starts(n_layers: int, length: int) -> list[tuple[int, int]]:
    """The (layer, token) where replays start: low, middle and high layers, early and late tokens."""
    last, end = n_layers - 1, length - 1
    return list(dict.fromkeys([(0, end // 2), (0, 1), (n_layers // 2, 1), (n_layers // 2, end - 1), (last, end // 3)]))


def replay_from(surgeon: Surgeon, recording: RecordedRun, layer: int, first: int) -> Tensor:
    """Final residuals (row, token, hidden) of a null edit, from its token to the last one."""
    edit = Edit("resid", torch.tensor([NULL_SHIFT]), at=[first], layer=layer, mode="add")
    read = Read("resid", at=range(first, recording.length), layer=surgeon.anatomy.n_layers)
    (resid,) = surgeon.run(recording, [edit], [read], allow_noop=True)
    return resid


@contextmanager
def layer_by_layer(model: PreTrainedModel) -> Iterator[None]:
    """Turn errors of running layers one by one into `UnsupportedArchitecture`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (SurgeryError, UnknownAttention, RuntimeError, TypeError, LookupError, AttributeError) as error:
        raise UnsupportedArchitecture(
            f"the layers of {type(model).__name__} cannot be run one by one ({error}), which every replay does. "
            "Support for its calls would have to be added to rebinding/surgery/recording.py."
        ) from error


def inert_sites(
    surgeon: Surgeon,
    recording: RecordedRun,
    sizes: Callable[[Site, int], float],
    allowance: Allowance,
    layers: Callable[[Anatomy, Site], list[int]] | None = None,
) -> list[Site]:
    """Sites where noise at every head of `layers` (by default `edited_layers`) and the last tokens does not change the
    last residual.

    One batch: one row per site, and one unedited row.
    """
    anatomy = surgeon.anatomy
    absent = {"logits", *(("resid_mid",) if anatomy.lacks_middle else ())}
    sites = [site for site in SITES if site not in absent]
    edits = [
        _noise(anatomy, site, layer, row, recording.length, sizes(site, layer))
        for row, site in enumerate(sites, start=1)
        for layer in (layers or edited_layers)(anatomy, site)
    ]
    read = Read("resid", at=_last(recording.length), layer=anatomy.n_layers)
    source = torch.zeros(len(sites) + 1, dtype=torch.long)
    (resid,) = surgeon.run(recording, edits, [read], source=source)  # (row, token, hidden)
    changes = [_relative_change(row, resid[0]) for row in resid[1:]]
    return [site for site, change in zip(sites, changes, strict=True) if not change > allowance.relative]


def edited_layers(anatomy: Anatomy, site: Site) -> list[int]:
    """The first, the middle and the last layer that has a site."""
    having = [
        parts.number
        for parts in anatomy.parts
        if site in HEADLESS or (parts.has_own_keys if site in ("k", "v") else parts.n_heads)
    ]
    return sorted({having[0], having[len(having) // 2], having[-1]})


def _relative_change(row: Tensor, reference: Tensor) -> float:
    """The mean relative change of the dimensions of a residual, each at most 1.

    Planted and trained models have dimensions a thousand times larger than others, which would hide any change.
    """
    change_size, dimension_size = (
        (value.float().square().mean(dim=0).sqrt()) for value in (row - reference, reference)
    )  # (hidden)
    return float((change_size / dimension_size.clamp(min=torch.finfo(dimension_size.dtype).tiny)).clamp(max=1).mean())


def _noise(anatomy: Anatomy, site: Site, layer: int, row: int, length: int, size: float) -> Edit:
    grouped, parts = site in ("k", "v"), anatomy.parts[layer]
    heads = None if site in HEADLESS else list(range(parts.n_kv_heads if grouped else parts.n_heads))
    width = length if site in KEYED else anatomy.width(site) if heads is None else parts.head_dim
    tokens = _last(length)
    shape = (1, len(tokens), width) if heads is None else (1, len(heads), len(tokens), width)
    dice = torch.Generator().manual_seed(row * anatomy.n_layers + layer)
    return Edit(
        site,
        size * torch.randn(shape, generator=dice),
        at=tokens,
        head=None if heads is None else in_layer(layer, heads),
        layer=layer if heads is None else None,
        rows=[row],
        mode="add",
        scope="group" if grouped else None,
    )


def _last(length: int) -> list[int]:
    return list(range(max(0, length - TOKENS), length))


def size_at(activations: ModuleActivations, anatomy: Anatomy, site: Site, layer: int) -> float:
    """One plus the root mean square of a site's values; 1 for scores and patterns."""
    if site in KEYED:
        return 1.0
    name = "resid" if site in HEADLESS else {"q_rot": "q", "k_rot": "k", "v_seen": "v"}.get(site, site)
    layer = anatomy.parts[layer].key_layer if name in ("k", "v") else layer
    return 1.0 + size(activations.modules[layer, name])
