"""Is the model what we take it for? Asked of every subject at load, in a few forwards over one prompt of random tokens.

1. Its attention function can be replaced.
2. On its own eager attention, earlier tokens do not depend on later ones.
3. On ours, the residual stream and the logits are the same.
4. Its anatomy holds: `rebinding.models.verify`.
5. Its layers mix tokens by attention alone, and run over a window of tokens as over all of them, whatever their
   weights: `rebinding.models.layers`.
6. A replay of next to nothing gives its own numbers at every token, and an edit of every site moves what comes out:
   `rebinding.models.replays`.

"The same" is as near as rounding in float32 lets two ways of summing be (`rebinding.models.rounding`). Models of 16
bits are raised to float32 for these comparisons, and run once as they are.
What fails is refused with the reason; a norm layout that does not reproduce the layers is set to `unknown` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.models.errors import (
    AttentionDiffers,
    DamagedWeights,
    FixedAttention,
    InertSite,
    ModelError,
    NotCausal,
    NotFinite,
    UnknownAttentionInput,
    UnsupportedArchitecture,
)
from rebinding.models.layers import check_mixing, check_windows
from rebinding.models.probe import SHORT, Watched, draw_tokens, forward, other_tokens, watched
from rebinding.models.replays import check_replay, inert_sites, layer_by_layer, replay_from, size_at
from rebinding.models.rounding import Allowance, in_float32, size
from rebinding.models.verify import STAGES, check_anatomy
from rebinding.surgery import Anatomy, TorchSurgeon, derive
from rebinding.surgery.attention import UnknownAttention, install
from rebinding.surgery.memory import is_out_of_memory
from rebinding.surgery.recording import Recording

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CHANGED = 3
"""Tokens at the end of the probe that are exchanged to see whether earlier ones notice."""


@contextmanager
def as_subject_error(name: str) -> Iterator[None]:
    """What goes wrong while a model is opened or checked is one of these errors, whichever library raised it."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise UnsupportedArchitecture(
            f"{name} cannot be checked, so it cannot be studied: {type(error).__name__}: {error!s:.300}. Either it "
            "does not run with this config.json (try it with transformers alone), or its parts work in a way that is "
            "not known here: rebinding/surgery/anatomy.py would have to know them."
        ) from error


def check_subject(model: PreTrainedModel) -> Anatomy:
    """The anatomy of a model, verified; the model is left on our attention. An error says what is wrong with it."""
    with as_subject_error(type(model).__name__):
        return _checked(model)


def _checked(model: PreTrainedModel) -> Anatomy:
    _install(model)
    anatomy = derived(model)
    tokens, allowance = draw_tokens(model, anatomy), Allowance.of_model(model, anatomy)
    surgeon = TorchSurgeon(model, anatomy)
    with in_float32(model, anatomy):
        with _own_attention(model):
            own = forward(model, anatomy, tokens)
            _check_finite(model, own.logits)
            _check_causal(model, anatomy, tokens[:, :SHORT], own, allowance)
        ours, recording = _recorded(surgeon, tokens)
        _check_same(model, anatomy, own, ours, allowance)
        anatomy = check_anatomy(model, anatomy, own, ours, recording, allowance)
        with layer_by_layer(model):
            check_mixing(model, anatomy, recording, ours, allowance)
            check_windows(model, anatomy, recording, allowance)
            check_replay(surgeon, recording, own.modules[anatomy.n_layers, "resid"], allowance)
        _check_edits(surgeon, recording, ours, allowance)
    if model.dtype != torch.float32:
        _check_as_it_is(surgeon, tokens[:, :SHORT])
    return anatomy


def _install(model: PreTrainedModel) -> None:
    try:
        install(model)
    except (UnknownAttention, ValueError) as error:
        raise FixedAttention(f"{error} Pass a model that transformers runs through its AttentionInterface.") from error


def derived(model: PreTrainedModel) -> Anatomy:
    """The anatomy that a model's modules show, all layers alike; nothing is computed."""
    try:
        anatomy = derive(model)
    except Exception as error:  # configurations have errors of their own
        raise UnsupportedArchitecture(
            f"{type(model).__name__} is built in a way that is not known here ({error}). Its parts would have "
            "to be named in rebinding/surgery/anatomy.py."
        ) from error
    _check_alike(model, anatomy)
    return anatomy


def _check_alike(model: PreTrainedModel, anatomy: Anatomy) -> None:
    """The anatomy was read off layer 0; every layer has to have the same parts."""
    paths = {anatomy.q.module, anatomy.k.module, anatomy.v.module, anatomy.output, anatomy.mlp}
    for number, layer in enumerate(anatomy.layer_modules(model)):
        lacking = sorted(paths - {name for name, _ in layer.named_modules()})
        if lacking:
            raise UnsupportedArchitecture(
                f"{type(model).__name__} is a hybrid: layer {number} has no {', '.join(lacking)}, which layer 0 has. "
                "Pass a model whose layers are all alike."
            )


@contextmanager
def _own_attention(model: PreTrainedModel) -> Iterator[None]:
    """The library's eager attention for the length of a block."""
    config = model.config
    model.set_attn_implementation("eager" if config.get_text_config() is config else {"text_config": "eager"})
    try:
        yield
    finally:
        install(model)


def _check_finite(model: PreTrainedModel, logits: Tensor) -> None:
    if not bool(torch.isfinite(logits).all()):
        hint = (
            "load it with dtype='bfloat16' or 'float32'" if model.dtype == torch.float16 else "its weights are damaged"
        )
        raise NotFinite(
            f"{type(model).__name__} computes infinite logits or NaN in {model.dtype} from ordinary tokens: {hint}"
        )


def _check_as_it_is(surgeon: TorchSurgeon, tokens: Tensor) -> None:
    """In its own 16 bits a model runs and replays too, and does not overflow."""
    with layer_by_layer(surgeon.model):
        recording = surgeon.record(tokens)
        logits = surgeon.anatomy.logits(surgeon.model, replay_from(surgeon, recording, 0, 1))
    _check_finite(surgeon.model, logits)


def _check_causal(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, own: Watched, allowance: Allowance) -> None:
    """Change a prompt's last tokens and end there: what was computed before them has to stay, at them it must not."""
    other = forward(model, anatomy, other_tokens(model, anatomy, tokens, CHANGED))
    place = (anatomy.n_layers, "resid")
    before, after = own.modules[place][:, : tokens.shape[1]], other.modules[place]  # (prompt, token, hidden)
    if not allowance.near(after[:, :-CHANGED], before[:, :-CHANGED]):
        raise NotCausal(
            f"{type(model).__name__} looks at the future: changing the last {CHANGED} tokens changes earlier ones by "
            f"{size((after - before)[:, :-CHANGED]):.2g}. Roles and replays assume a causal mask; if its config.json "
            "switches the mask off (is_causal, use_bidirectional_attention), pass a causal model instead."
        )
    if any(allowance.near(a, b) for a, b in zip(after[0, -CHANGED:], before[0, -CHANGED:], strict=True)):
        raise DamagedWeights(f"{type(model).__name__} computes the same for different tokens: fetch its weights again")


def _recorded(surgeon: TorchSurgeon, tokens: Tensor) -> tuple[Watched, Recording]:
    """A run on our attention, watched from outside: what every replay starts from."""
    model, anatomy = surgeon.model, surgeon.anatomy
    with layer_by_layer(model):
        try:
            with watched(model, anatomy) as ours:
                recording = surgeon.record(tokens, keep=STAGES)
        except UnknownAttention as error:
            raise UnknownAttentionInput(str(error)) from error
        except TypeError as error:
            if "rules" not in str(error):
                raise
            raise FixedAttention(
                f"{type(model).__name__} does not pass keywords on to its attention ({error}): edits cannot reach it. "
                "Pass a model that transformers runs through its AttentionInterface."
            ) from error
    seen = len(recording.sites.get("scores", ()))
    if seen < anatomy.n_layers:
        raise FixedAttention(
            f"{type(model).__name__}: {anatomy.n_layers - seen} of {anatomy.n_layers} layers do not call the attention "
            "function that they were told to use, or do not hand their keywords on to it: edits there would do "
            "nothing. Pass a model all of whose layers use transformers' AttentionInterface."
        )
    return ours, recording


def _check_same(model: PreTrainedModel, anatomy: Anatomy, own: Watched, ours: Watched, allowance: Allowance) -> None:
    """The logits follow: they are the head of this residual (`check_anatomy`), and replays are held against them."""
    a, b = (seen.modules[anatomy.n_layers, "resid"] for seen in (own, ours))
    if not allowance.near(b, a):
        raise AttentionDiffers(
            f"{type(model).__name__}: with our attention function the residual stream differs by {size(a - b):.2g} "
            f"from the model's own eager attention (allowed: {allowance.of(a):.2g}). Its attention does something that "
            "rebinding/surgery/attention.py does not model."
        )


def _check_edits(surgeon: TorchSurgeon, recording: Recording, ours: Watched, allowance: Allowance) -> None:
    """Noise of the site's own size at the first layer, the middle one and the last."""
    count = surgeon.anatomy.n_layers
    layers = sorted({0, count // 2, count - 1})
    with layer_by_layer(surgeon.model):
        inert = inert_sites(surgeon, recording, layers, partial(size_at, ours), allowance)
    if inert:
        raise InertSite(
            f"{type(surgeon.model).__name__}: edits of {', '.join(inert)} at layers {', '.join(map(str, layers))} "
            "change nothing that comes out. Either these parts of the model are not connected, or its modules are not "
            "what its anatomy takes them for."
        )
