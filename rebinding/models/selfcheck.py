"""The check of a model, at two levels: a few forwards over one prompt of random tokens at every load, or every edit.

At load:

1. Its attention function can be replaced.
2. On its own eager attention, earlier tokens do not depend on later ones.
3. With `rebinding.surgery.attention`, the residual stream and the logits are the same.
4. Its anatomy is right: `rebinding.models.verify`.
5. Its layers mix tokens by attention alone, and give the same over a window of tokens as over all, whatever their
   weights: `rebinding.models.replays`.
6. A replay without a change gives its own numbers at every token, and an edit of every site changes the output:
   `rebinding.models.replays`.

"The same" means up to float32 rounding of sums in another order (`rebinding.models.probe`). Models of 16 bits are
converted to float32 for these comparisons, and run once in their own dtype.
A model that fails is refused with the reason; a norm layout that does not reproduce the layers is set to `unknown`.

To certify it, every site is edited at every layer: `rebinding.models.certificate`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, Unpack, get_args, overload

import torch
from torch import Tensor

from rebinding.models.certificate import CertifyOptions, certify
from rebinding.models.errors import (
    DamagedModel,
    FailedSelfCheck,
    ModelError,
    UnsupportedArchitecture,
    explain,
)
from rebinding.models.probe import (
    SHORT,
    Allowance,
    ModuleActivations,
    draw_tokens,
    exchange_tokens,
    forward,
    in_float32,
    size,
    watch_modules,
)
from rebinding.models.reference import use_attention
from rebinding.models.replays import (
    check_mixing,
    check_replay,
    check_windows,
    edited_layers,
    inert_sites,
    layer_by_layer,
    replay_from,
    size_at,
)
from rebinding.models.verify import STAGES, check_anatomy
from rebinding.paper.certificate import Certificate
from rebinding.surgery import Anatomy, TorchSurgeon, derive
from rebinding.surgery.attention import UnknownAttention, install
from rebinding.surgery.memory import is_out_of_memory
from rebinding.surgery.recording import RecordedRun

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Level: TypeAlias = Literal["load", "certify"]
LEVELS: tuple[Level, ...] = get_args(Level)
EXCHANGED = 3
"""Tokens at the end of the probe that are exchanged to see whether earlier ones change."""


@contextmanager
def as_model_error(name: str) -> Iterator[None]:
    """Turn any error of opening or checking a model into a `ModelError`."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedArchitecture(
            f"{name} cannot be checked ({type(error).__name__}: {error!s:.300}), so it cannot be studied. Either it "
            "does not run with this config.json (try it with transformers alone), or its parts work in an unknown way: "
            "support would have to be added to rebinding/surgery/derivation.py."
        ) from error


@overload
def check(model: PreTrainedModel, level: Literal["load"] = "load") -> Anatomy: ...


@overload
def check(
    model: PreTrainedModel, level: Literal["certify"], anatomy: Anatomy | None = None, **options: Unpack[CertifyOptions]
) -> Certificate: ...


def check(
    model: PreTrainedModel, level: Level = "load", anatomy: Anatomy | None = None, **options: Unpack[CertifyOptions]
) -> Anatomy | Certificate:
    """Check a model as at every load, which returns its verified anatomy, or certify it.

    Afterwards the model runs on our attention function. An error says what is wrong at load. A certificate lists what
    is wrong; it takes a verified `anatomy`, or the model is checked as at load first.
    """
    if level not in LEVELS:
        raise ValueError(f"there is no level {level!r}; the levels are {', '.join(LEVELS)}")
    if level == "load":
        return _verify(model)
    return certify(model, anatomy or _verify(model), options)


def _verify(model: PreTrainedModel) -> Anatomy:
    """The verified anatomy of a model; a refusal begins with what the model does."""
    try:
        with as_model_error(type(model).__name__):
            return _check_at_load(model)
    except ModelError as error:
        raise explain(model, error) from error


def _check_at_load(model: PreTrainedModel) -> Anatomy:
    _install(model)
    anatomy = derive_checked(model)
    tokens, allowance = draw_tokens(model, anatomy), Allowance.of_model(model, anatomy)
    surgeon = TorchSurgeon(model, anatomy)
    with in_float32(model, anatomy):
        with use_attention(model, "eager"):
            own = forward(model, anatomy, tokens)
            _check_finite(model, own.logits)
            _check_causal(model, anatomy, tokens[:, :SHORT], allowance)
        activations, recording = _record_installed(surgeon, tokens)
        _check_same(model, anatomy, own, activations, allowance)
        anatomy = check_anatomy(model, anatomy, own, activations, recording, allowance)
        with layer_by_layer(model):
            check_mixing(model, anatomy, recording, activations, allowance)
            check_windows(model, anatomy, recording, allowance)
            check_replay(surgeon, recording, own.modules[anatomy.n_layers, "resid"], allowance)
        _check_edits(surgeon, recording, activations, allowance)
    if model.dtype != torch.float32:
        _check_own_dtype(surgeon, tokens[:, :SHORT])
    return anatomy


def _install(model: PreTrainedModel) -> None:
    try:
        install(model)
    except (UnknownAttention, ValueError) as error:
        raise UnsupportedArchitecture(
            f"{type(model).__name__} computes attention in code of its own, which transformers cannot replace. {error} "
            "Pass a model that transformers runs through its AttentionInterface."
        ) from error


def derive_checked(model: PreTrainedModel) -> Anatomy:
    """The anatomy of a model's modules; nothing is computed."""
    try:
        anatomy = derive(model)
    except Exception as error:  # configurations raise their own errors
        raise UnsupportedArchitecture(
            f"{type(model).__name__} has an unknown structure ({error}). Its parts would have to be named in "
            "rebinding/surgery/derivation.py."
        ) from error
    return anatomy


def _check_finite(model: PreTrainedModel, logits: Tensor) -> None:
    if not bool(torch.isfinite(logits).all()):
        hint = (
            "load it with dtype='bfloat16' or 'float32'" if model.dtype == torch.float16 else "its weights are damaged"
        )
        raise FailedSelfCheck(
            f"{type(model).__name__} computes infinite logits or NaN in {model.dtype} from ordinary tokens: {hint}"
        )


def _check_own_dtype(surgeon: TorchSurgeon, tokens: Tensor) -> None:
    """Refuse a model that overflows in its own 16 bits."""
    with layer_by_layer(surgeon.model):
        recording = surgeon.record(tokens)
        logits = surgeon.anatomy.logits(surgeon.model, replay_from(surgeon, recording, 0, 1))
    _check_finite(surgeon.model, logits)


def _check_causal(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, allowance: Allowance) -> None:
    """Change a prompt's last tokens: the residual must stay the same before them and change at them."""
    prompts = (tokens, exchange_tokens(model, anatomy, tokens, EXCHANGED))  # of one length: RoPE may depend on it
    before, after = (forward(model, anatomy, prompt).modules[anatomy.n_layers, "resid"] for prompt in prompts)
    if not allowance.near(after[:, :-EXCHANGED], before[:, :-EXCHANGED]):
        raise FailedSelfCheck(
            f"{type(model).__name__} looks at the future: changing the last {EXCHANGED} tokens changes earlier ones by "
            f"{size((after - before)[:, :-EXCHANGED]):.2g}. Roles and replays assume a causal mask; if its config.json "
            "switches the mask off (is_causal, use_bidirectional_attention), pass a causal model instead."
        )
    if any(allowance.near(a, b) for a, b in zip(after[0, -EXCHANGED:], before[0, -EXCHANGED:], strict=True)):
        raise DamagedModel(f"{type(model).__name__} computes the same for different tokens: fetch its weights again")


def _record_installed(surgeon: TorchSurgeon, tokens: Tensor) -> tuple[ModuleActivations, RecordedRun]:
    """The activations and the recording of a run on our attention function."""
    model, anatomy = surgeon.model, surgeon.anatomy
    with layer_by_layer(model):
        try:
            with watch_modules(model, anatomy) as activations:
                recording = surgeon.record(tokens, keep=STAGES)
        except UnknownAttention as error:
            raise UnsupportedArchitecture(str(error)) from error
        except TypeError as error:
            if "rules" not in str(error):
                raise
            raise UnsupportedArchitecture(
                f"{type(model).__name__} does not pass keywords on to its attention ({error}): edits cannot reach it. "
                "Pass a model that transformers runs through its AttentionInterface."
            ) from error
    scores = recording.sites.get("scores", [])
    with_heads = {parts.number for parts in anatomy.parts if parts.n_heads}
    count = sum(number < len(scores) and scores[number].numel() > 0 for number in with_heads)
    if count < len(with_heads):
        raise UnsupportedArchitecture(
            f"{type(model).__name__}: {len(with_heads) - count} of {len(with_heads)} layers do not call the "
            "attention function that was set, or do not pass their keywords on to it: edits there would do nothing. "
            "Pass a model all of whose layers use transformers' AttentionInterface."
        )
    return activations, recording


def _check_same(
    model: PreTrainedModel,
    anatomy: Anatomy,
    own: ModuleActivations,
    activations: ModuleActivations,
    allowance: Allowance,
) -> None:
    """Compare the final residuals. The logits follow from them (`check_anatomy`)."""
    a, b = (run.modules[anatomy.n_layers, "resid"] for run in (own, activations))
    if not allowance.near(b, a):
        raise FailedSelfCheck(
            f"{type(model).__name__}: with our attention function the residual stream differs by {size(a - b):.2g} "
            f"from the model's own eager attention (allowed: {allowance.of(a):.2g}). Its attention does something that "
            "rebinding/surgery/attention.py does not model."
        )


def _check_edits(
    surgeon: TorchSurgeon, recording: RecordedRun, activations: ModuleActivations, allowance: Allowance
) -> None:
    """Refuse a model with sites where noise of the site's size has no effect, at the first, middle and last layer."""
    sizes = partial(size_at, activations, surgeon.anatomy)
    with layer_by_layer(surgeon.model):
        inert = inert_sites(surgeon, recording, sizes, allowance)
    if inert:
        layers = sorted({layer for site in inert for layer in edited_layers(surgeon.anatomy, site)})
        raise FailedSelfCheck(
            f"{type(surgeon.model).__name__}: edits of {', '.join(inert)} at layers {', '.join(map(str, layers))} "
            "change nothing that comes out. Either these parts of the model are not connected, or its modules differ "
            "from its anatomy."
        )
