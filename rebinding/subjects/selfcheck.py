"""Is the model what we take it for? Asked of every subject at load, in a few forwards over two short prompts.

1. Its attention function can be replaced.
2. On its own eager attention, earlier tokens do not depend on later ones.
3. On ours, the residual stream and the logits are the same: in float32 to the last bit; in 16 bits, where a GPU may
   choose other kernels, within `ROUNDING` units in the last place of the largest entry.
4. Its anatomy holds: `rebinding.subjects.verify`.
5. An edit of every site moves the logits.

What fails is refused with the reason; a norm layout that does not reproduce the layers is set to `unknown` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rebinding.subjects.errors import (
    AttentionDiffers,
    DamagedWeights,
    FixedAttention,
    InertSite,
    NotCausal,
    NotFinite,
    UnknownAttentionInput,
    UnsupportedArchitecture,
)
from rebinding.subjects.probe import Watched, draw_tokens, forward, other_tokens
from rebinding.subjects.verify import check_anatomy
from rebinding.surgery import Anatomy, Edit, Read, Site, Surgeon, SurgeryError, TorchSurgeon, derive
from rebinding.surgery.anatomy import AnatomyError
from rebinding.surgery.attention import UnknownAttention, install
from rebinding.surgery.sites import HEADLESS, KEYED, SITES

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUNDING = 4
"""Two roundings of a product and a sum each, on either side: the most by which one exchanged kernel may differ."""

CHANGED = 3
"""Tokens at the end of the probe that are exchanged to see whether earlier ones notice."""


def check_subject(model: PreTrainedModel) -> Anatomy:
    """The anatomy of a model, verified; the model is left on our attention. An error says what is wrong with it."""
    _install(model)
    anatomy = derived(model)
    tokens = draw_tokens(model, anatomy)
    with _own_attention(model):
        own = forward(model, anatomy, tokens, rules=False)
        _check_finite(model, own)
        _check_causal(model, anatomy, tokens, own)
    ours = _on_ours(model, anatomy, tokens)
    _check_same(model, anatomy, own, ours)
    anatomy = check_anatomy(model, anatomy, ours, rounding=ROUNDING)
    _check_edits(model, anatomy, tokens, ours)
    return anatomy


def allowance(like: Tensor) -> float:
    """How far two results may differ by rounding."""
    return ROUNDING * torch.finfo(like.dtype).eps * float(like.abs().max())


def _install(model: PreTrainedModel) -> None:
    try:
        install(model)
    except (UnknownAttention, ValueError) as error:
        raise FixedAttention(f"{error} Pass a model that transformers runs through its AttentionInterface.") from error


def derived(model: PreTrainedModel) -> Anatomy:
    """The anatomy that a model's modules show, all layers alike; nothing is computed."""
    try:
        anatomy = derive(model)
    except (AnatomyError, AttributeError) as error:
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


def _check_finite(model: PreTrainedModel, own: Watched) -> None:
    if not bool(torch.isfinite(own.logits).all()):
        hint = (
            "load it with dtype='bfloat16' or 'float32'" if model.dtype == torch.float16 else "its weights are damaged"
        )
        raise NotFinite(
            f"{type(model).__name__} computes infinite logits or NaN in {model.dtype} from ordinary tokens: {hint}"
        )


def _check_causal(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, own: Watched) -> None:
    """Exchange the last tokens: what the model computes at the tokens before them must stay, at the end it must not.

    The two runs have the same shape, so their earlier rows are the same computation; a mixture of experts may group
    them otherwise, hence the allowance.
    """
    other = forward(model, anatomy, other_tokens(model, anatomy, tokens, CHANGED), rules=False)
    place = (anatomy.n_layers, "resid")
    moved = (own.modules[place] - other.modules[place]).abs().amax(dim=(0, 2))  # (token,)
    if float(moved[:-CHANGED].max()) > allowance(own.modules[place]):
        raise NotCausal(
            f"{type(model).__name__} looks at the future: changing the last {CHANGED} tokens changes earlier ones by "
            f"{float(moved[:-CHANGED].max()):.2g}. Roles and replays assume a causal mask; if its config.json "
            "switches the mask off (is_causal, use_bidirectional_attention), pass a causal model instead."
        )
    if float(moved[-CHANGED:].min()) == 0.0:
        raise DamagedWeights(f"{type(model).__name__} computes the same for different tokens: fetch its weights again")


def _on_ours(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor) -> Watched:
    try:
        return forward(model, anatomy, tokens, rules=True)
    except UnknownAttention as error:
        raise UnknownAttentionInput(str(error)) from error
    except TypeError as error:
        if "rules" not in str(error):
            raise
        raise FixedAttention(
            f"{type(model).__name__} does not pass keywords on to its attention ({error}): edits cannot reach it. "
            "Pass a model that transformers runs through its AttentionInterface."
        ) from error


def _check_same(model: PreTrainedModel, anatomy: Anatomy, own: Watched, ours: Watched) -> None:
    silent = [layer for layer in range(anatomy.n_layers) if (layer, "z") not in ours.stages]
    if silent:
        raise FixedAttention(
            f"{type(model).__name__}: layers {silent} do not call the attention function that they were told to "
            "use, or do not hand their keywords on to it: edits there would do nothing. Pass a model all of whose "
            "layers use transformers' AttentionInterface."
        )
    place = (anatomy.n_layers, "resid")
    for what, a, b in (
        ("residual stream", own.modules[place], ours.modules[place]),
        ("logits", own.logits, ours.logits),
    ):
        allowed = 0.0 if a.dtype == torch.float32 else allowance(a)
        if not float((a - b).abs().max()) <= allowed:
            raise AttentionDiffers(
                f"{type(model).__name__}: with our attention function the {what} differs by "
                f"{float((a - b).abs().max()):.2g} from the model's own eager attention (allowed: {allowed:.2g}). Its "
                "attention does something that rebinding/surgery/attention.py does not model."
            )


def _check_edits(model: PreTrainedModel, anatomy: Anatomy, tokens: Tensor, ours: Watched) -> None:
    """Noise of the site's own size at every layer."""
    try:
        inert = inert_sites(TorchSurgeon(model, anatomy), tokens, range(anatomy.n_layers), partial(_size, ours))
    except torch.OutOfMemoryError:
        raise
    except (SurgeryError, UnknownAttention, RuntimeError, TypeError, LookupError, AttributeError) as error:
        raise UnsupportedArchitecture(
            f"the layers of {type(model).__name__} cannot be run one by one ({error}), which every replay does. Its "
            "way of calling them would have to be added to rebinding/surgery/recording.py."
        ) from error
    if inert:
        raise InertSite(
            f"{type(model).__name__}: edits of {', '.join(inert)} at every layer leave the logits as they were. Either "
            "these parts of the model are not connected, or its modules are not what its anatomy takes them for."
        )


def inert_sites(
    surgeon: Surgeon, tokens: Tensor, layers: Sequence[int], size: Callable[[Site, int], float]
) -> list[Site]:
    """Sites at which noise of some size at every head and token of these layers does not move the logits.

    One batch: a row a site, and one row left alone.
    """
    anatomy, sites = surgeon.anatomy, [site for site in SITES if site != "logits"]
    edits = [
        _noise(anatomy, site, layer, row, tokens.shape[1], size(site, layer))
        for row, site in enumerate(sites, start=1)
        for layer in layers
    ]
    read = Read("logits", positions=[tokens.shape[1] - 1])
    recording = surgeon.record(tokens[:1])
    (logits,) = surgeon.run(recording, edits, [read], source=torch.zeros(len(sites) + 1, dtype=torch.long))
    moved = (logits[1:] - logits[:1]).abs().amax(dim=(1, 2))  # (site,)
    return [site for site, by in zip(sites, moved.tolist(), strict=True) if not by > allowance(logits[0])]


def _noise(anatomy: Anatomy, site: Site, layer: int, row: int, length: int, size: float) -> Edit:
    grouped = site in ("k", "v")
    heads = None if site in HEADLESS else list(range(anatomy.n_kv_heads if grouped else anatomy.n_heads))
    width = length if site in KEYED else anatomy.hidden if heads is None else anatomy.head_dim
    shape = (1, length, width) if heads is None else (1, len(heads), length, width)
    dice = torch.Generator().manual_seed(row * anatomy.n_layers + layer)
    return Edit(
        site,
        layer,
        size * torch.randn(shape, generator=dice),
        positions=list(range(length)),
        heads=heads,
        rows=[row],
        mode="add",
        scope="group" if grouped else None,
    )


def _size(ours: Watched, site: Site, layer: int) -> float:
    """One more than the root mean square of what stands at a site; scores and patterns have sizes of their own."""
    if site in KEYED:
        return 1.0
    what = "resid" if site in HEADLESS else {"q_rot": "q", "k_rot": "k", "v_seen": "v"}.get(site, site)
    return 1.0 + float(ours.modules[layer, what].float().square().mean().sqrt())
