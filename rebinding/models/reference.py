"""Edited runs without recording, prefix or replay: the reference of a certificate, and the edits that it makes.

An edit is noise of a site's size, at half of the heads and one token. The library's own model runs forward over all
tokens of all rows. Edits outside attention run on the library's eager attention, edits inside it on a plain attention
function. Only the places of the sites come from the anatomy.

A raw key or value of one query head is taken from another row, whose edit acts on the whole KV group where the keys are
computed: the library applies its own norm and RoPE there. Both rows are equal below that layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rebinding.models.probe import token_device
from rebinding.surgery.anatomy import Anatomy, End, LayerParts
from rebinding.surgery.attention import install, set_attention
from rebinding.surgery.calling import forget_lengths
from rebinding.surgery.sites import HEADLESS, KEYED, SITES, Attention, Edit, Scope, Site, in_layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INSIDE: frozenset[str] = frozenset({"q_rot", "k_rot", "v_seen", "scores", "pattern"})
"""Sites inside the attention function."""
LAYERS_AT_ONCE = 2
"""Layers that share a batch and the edited token; the others get another token."""
SCOPED: dict[Site, tuple[Scope | None, ...]] = {"k": ("group", "head"), "v": ("group", "head")}
Values: TypeAlias = dict[tuple[str, int], Tensor]
"""Sites by (name, layer), as (row, head, token, width), or (row, token, width) without heads."""
NAME = "rebinding_reference"


@dataclass(frozen=True)
class Cell:
    """A site, the scope of its edit, and whether attention is frozen."""

    site: Site
    scope: Scope | None = None
    attention: Attention = "live"

    def __str__(self) -> str:
        return " ".join(filter(None, [self.site, self.scope, "frozen" if self.attention == "frozen" else None]))


CELLS: tuple[Cell, ...] = (
    *(Cell(site, scope) for site in SITES for scope in SCOPED.get(site, (None,))),
    *(Cell(site, attention="frozen") for site in ("resid", "z", "mlp_out", "logits", "resid_mid")),
)
"""Every kind of edit that a surgeon offers."""


@dataclass(frozen=True, eq=False)
class Trial:
    """Noise that is added to one site of one layer, at one token of one row."""

    site: Site
    layer: int
    position: int
    value: Tensor
    """(head, 1, width), or (1, width) at sites without heads."""
    heads: tuple[int, ...] | None = None
    scope: Scope | None = None
    attention: Attention = "live"
    group: Trial | None = None
    copies: tuple[int, ...] = ()
    """An edit of single heads' copies: the edit of the whole KV groups where the keys come from, and the query heads
    that see its keys or values."""

    @property
    def is_inside(self) -> bool:
        """Whether the edit acts inside the attention function."""
        return self.site in INSIDE or self.group is not None

    @property
    def cell(self) -> Cell:
        """The kind of edit."""
        return Cell(self.site, self.scope, self.attention)

    def edit(self, row: int) -> Edit:
        """The edit of a surgeon, in one row of its batch."""
        value = self.value if self.heads is None else self.value[None]
        return Edit(
            self.site,
            value if self.heads is not None else value[None],
            at=[self.position],
            head=None if self.heads is None else in_layer(self.layer, self.heads),
            layer=self.layer if self.heads is None and self.site != "logits" else None,
            rows=[row],
            mode="add",
            scope=self.scope,
        )


def missing_part(anatomy: Anatomy, cell: Cell, layer: int) -> str | None:
    """Why a layer has no such site; None if it has it."""
    if cell.site == "resid_mid" and anatomy.lacks_middle:
        return anatomy.lacks_middle
    if layer == anatomy.n_layers or cell.site in HEADLESS:
        return None
    return None if anatomy.parts[layer].n_heads else "the layer has no attention heads"


def cells_at(anatomy: Anatomy, layer: int, attention: Attention) -> list[Cell]:
    """The cells that exist at a layer; `n_layers` is the input of the final norm, and the logits above it."""
    top = ("resid", "logits")
    is_top = layer == anatomy.n_layers
    return [
        cell
        for cell in CELLS
        if cell.attention == attention
        and (cell.site in top if is_top else cell.site != "logits")
        and missing_part(anatomy, cell, layer) is None
    ]


def batches(layers: Sequence[int]) -> Iterator[list[int]]:
    """Layers that are edited in one batch: low and high ones together, so that rows start at different layers."""
    count = -(-len(layers) // LAYERS_AT_ONCE)
    yield from ([*layers[start::count]] for start in range(count))


def make_trials(
    anatomy: Anatomy,
    cells: Sequence[Cell],
    layer: int,
    position: int,
    length: int,
    size: Callable[[Site, int], Tensor | float],
) -> list[Trial]:
    """One trial for each cell."""
    parts, trials = anatomy.parts[min(layer, anatomy.n_layers - 1)], []
    for cell in cells:
        dice = torch.Generator().manual_seed(1000 * layer + 10 * SITES.index(cell.site) + (cell.attention == "frozen"))
        noise = torch.randn(max(parts.n_heads, 1), 1, _width(anatomy, parts, cell.site, length), generator=dice)
        noise = noise * size(cell.site, layer)  # (head, 1, width)
        if cell.site in HEADLESS:
            trials.append(Trial(cell.site, layer, position, noise[0], attention=cell.attention))
            continue
        heads = _draw_half(range(parts.n_heads if cell.scope is None else parts.n_kv_heads), dice)
        trial = Trial(cell.site, layer, position, noise[list(heads)], heads, cell.scope, cell.attention)
        is_copy = cell.scope == "head" or (cell.scope == "group" and not parts.has_own_keys)
        trials.append(_edit_copies(trial, parts, noise, dice) if is_copy else trial)
    return trials


def _edit_copies(trial: Trial, parts: LayerParts, noise: Tensor, dice: torch.Generator) -> Trial:
    """An edit of what query heads see of some KV heads: half of these query heads, or all with `scope="group"`."""
    group = replace(trial, layer=parts.key_layer, scope="group")
    members = [head for head in range(parts.n_heads) if parts.kv_head(head) in (trial.heads or ())]
    if trial.scope == "group":
        return replace(trial, group=group, copies=tuple(members))
    heads = _draw_half(members, dice)
    value = noise[[parts.kv_head(head) for head in heads]]  # the noise of each head's KV head
    return replace(trial, heads=heads, value=value, group=group, copies=heads)


def _draw_half(items: Sequence[int], dice: torch.Generator) -> tuple[int, ...]:
    """Half of some heads, rounded up, in random order."""
    order = torch.randperm(len(items), generator=dice).tolist()
    return tuple(items[place] for place in order[: -(-len(items) // 2)])


def _width(anatomy: Anatomy, parts: LayerParts, site: Site, length: int) -> int:
    if site == "logits":
        return 1  # the same noise for all tokens of the vocabulary, of which 16-bit models compute a part here
    if site in HEADLESS:
        return anatomy.width(site)
    return length if site in KEYED else parts.head_dim


@dataclass(eq=False)
class Pass:
    """The edits of the rows of a forward, and the sites that it keeps. With `held`, z and mixers are as in that run."""

    anatomy: Anatomy
    trials: Sequence[Trial | None]
    held: Mapping[tuple[str, int], Tensor] | None
    values: Values
    is_kept: bool
    entries: dict[int, Tensor] = field(default_factory=dict)
    """The residual stream at the input of the layer that runs."""

    def visit(self, site: str, layer: int, value: Tensor) -> Tensor:
        """Add the noise of each row's trial to a site (row, [head,] token, width)."""
        for row, trial in enumerate(self.trials):
            if trial is not None and (trial.site, trial.layer) == (site, layer) and trial.group is None:
                value = value.clone()
                noise = trial.value.to(value)
                if site in HEADLESS:
                    value[row, trial.position] += noise[0]
                else:
                    value[row, list(trial.heads or ()), trial.position] += noise[:, 0]
        if self.is_kept or (site, layer) == ("resid", self.anatomy.n_layers):
            self.values[site, layer] = value
        return value

    def hook(self, model: PreTrainedModel, hooks: ExitStack) -> None:
        """Put hooks on all sites outside attention."""
        layers = self.anatomy.layer_modules(model)
        for layer, parts in zip(layers, self.anatomy.parts, strict=True):
            self._watch(hooks, layer, "input", partial(self._see_resid, parts.number))
            self._watch(hooks, layer.get_submodule(parts.mlp[-1]), "output", partial(self._see_mlp, parts.number))
            if parts.mixer:
                self._watch(hooks, layer.get_submodule(parts.mixer), "output", partial(self._hold_mixer, parts.number))
            if not self.anatomy.lacks_middle:
                last = layer.get_submodule(self.anatomy.last_of_attention(parts))
                self._watch(hooks, last, "output", partial(self._see_middle, parts.number))
            if parts.n_heads:
                self._watch(hooks, layer.get_submodule(parts.output), "input", partial(self._see_z, parts))
            for site in ("q", "k", "v") if parts.n_heads else ():
                path, end = parts.module_of(site)
                if path:
                    self._watch(hooks, layer.get_submodule(path), end, partial(self._see_projection, parts, site))
        self._watch(hooks, layers[-1], "output", partial(self._see_resid, self.anatomy.n_layers))

    def _watch(self, hooks: ExitStack, module: nn.Module, end: End, see: Callable[[Tensor], Tensor]) -> None:
        """Replace what a module takes or puts out by `see` of it."""

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if args:
                return (see(args[0]), *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": see(kwargs["hidden_states"])}

        def after(_: nn.Module, args: Any, output: Any) -> Any:
            return (see(output[0]), *output[1:]) if isinstance(output, tuple) else see(output)

        if end == "input":
            hooks.enter_context(module.register_forward_pre_hook(before, with_kwargs=True))
        else:
            hooks.enter_context(module.register_forward_hook(after))

    def _see_resid(self, layer: int, value: Tensor) -> Tensor:
        resid = self.visit("resid", layer, self.anatomy.from_layer(value))
        self.entries = {layer: resid}  # of the layer that runs
        return self.anatomy.to_layer(resid)

    def _see_mlp(self, layer: int, value: Tensor) -> Tensor:
        by_token = value.reshape(len(self.trials), -1, value.shape[-1])  # some MLPs flatten rows and tokens
        return self.visit("mlp_out", layer, by_token).view_as(value)

    def _see_middle(self, layer: int, added: Tensor) -> Tensor:
        value = self.anatomy.middle(self.entries[layer], added)
        edited = self.visit("resid_mid", layer, value)
        return added if edited is value else self.anatomy.added_for(edited, self.entries[layer])

    def _hold_mixer(self, layer: int, value: Tensor) -> Tensor:
        """The output of a mixer; that of the unedited run where attention is frozen."""
        if self.held is not None:
            return self.held["mixer", layer].to(value).expand_as(value)
        if self.is_kept:
            self.values["mixer", layer] = value
        return value

    def _see_projection(self, parts: LayerParts, site: str, value: Tensor) -> Tensor:
        flat = value.flatten(2).clone()  # some norms take (row, token, head, head_dim)
        numbers = torch.arange(flat.shape[-1], device=flat.device)[None, None]
        columns = parts.projection(site).heads(numbers, parts.head_dim)[0, :, 0]  # (head, head_dim)
        heads = flat[..., columns].transpose(1, 2)  # (row, head, token, head_dim)
        flat[..., columns] = self.visit(site, parts.number, heads).transpose(1, 2)
        return flat.view(value.shape)

    def _see_z(self, parts: LayerParts, value: Tensor) -> Tensor:
        z = value.unflatten(-1, (-1, parts.head_dim)).transpose(1, 2)  # (row, head, token, head_dim)
        z = z if self.held is None else self.held["z", parts.number].to(z).expand_as(z)
        return self.visit("z", parts.number, z).transpose(1, 2).flatten(2).contiguous()

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor,
        *,
        scaling: float | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Attention as in the textbook, with soft cap and sinks; returns z (row, query, head, head_dim)."""
        owner: Any = module
        layer, group = int(owner.layer_idx), query.shape[1] // key.shape[1]
        key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))  # (row, head, key, head_dim)
        query = self.visit("q_rot", layer, query)
        key = self.visit("k_rot", layer, self._copy_heads("k", layer, key))
        value = self.visit("v_seen", layer, self._copy_heads("v", layer, value))
        scores = query @ key.transpose(2, 3) * (owner.head_dim**-0.5 if scaling is None else scaling)
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        scores = self.visit("scores", layer, scores + attention_mask)  # (row, head, query, key)
        pattern = self.visit("pattern", layer, softmax(scores, s_aux))
        return (pattern @ value).transpose(1, 2).contiguous(), pattern

    def _copy_heads(self, site: Site, layer: int, seen: Tensor) -> Tensor:
        """Give the heads of trials that edit copies what they see in the row whose edit acts on the KV group."""
        for row, trial in enumerate(self.trials):
            if trial is not None and trial.group is not None and (trial.site, trial.layer) == (site, layer):
                (source,) = (number for number, other in enumerate(self.trials) if other is trial.group)
                seen, heads = seen.clone(), list(trial.copies)
                seen[row, heads, trial.position] = seen[source, heads, trial.position]
        return seen


def softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """The shares (row, head, query, key) of the keys; a sink of each head takes a share of its own."""
    if sinks is None:
        return torch.softmax(scores, dim=-1)
    column = sinks.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]


@dataclass(eq=False)
class Reference:
    """The edited forwards of one model over one prompt (1, token)."""

    model: PreTrainedModel
    anatomy: Anatomy
    tokens: Tensor
    clean: Values = field(default_factory=dict)
    """Every site of the unedited run on the attention function of `Pass`."""
    own: Values = field(default_factory=dict)
    """The sites outside attention of the unedited run on the library's eager attention."""

    def __post_init__(self) -> None:
        for name, values in ((NAME, self.clean), ("eager", self.own)):
            self._forward([None], name, keep=values)

    @property
    def resid(self) -> Tensor:
        """The residual (row, token, hidden) after the last layer, on the library's eager attention."""
        return self.own["resid", self.anatomy.n_layers]

    def run(self, trials: Sequence[Trial]) -> Tensor:
        """The residuals (trial, token, hidden) after the last layer. All trials are live, or all are frozen."""
        held = self.own if trials[0].attention == "frozen" else None
        results: dict[int, Tensor] = {}
        for name, is_inside in (("eager", False), (NAME, True)):
            rows = [number for number, trial in enumerate(trials) if trial.is_inside is is_inside]
            if not rows:
                continue
            batch = [trials[row] for row in rows]
            groups = [trial.group for trial in batch if trial.group is not None]
            resid = self._forward([*batch, *groups], name, held=held)
            results |= dict(zip(rows, resid, strict=False))
        return torch.stack([results[number] for number in range(len(trials))])

    @torch.no_grad()
    def logits(self, trial: Trial | None) -> Tensor:
        """The logits (1, token, vocabulary) of the whole model, with the noise of a trial at its token."""
        with use_attention(self.model, "eager"):
            out: Tensor = self.model(input_ids=self.tokens.to(token_device(self.model)), use_cache=False).logits.clone()
        if trial is not None:
            out[:, trial.position] += trial.value.to(out)
        return out

    @torch.no_grad()
    def _forward(
        self,
        trials: Sequence[Trial | None],
        name: str,
        *,
        held: Mapping[tuple[str, int], Tensor] | None = None,
        keep: Values | None = None,
    ) -> Tensor:
        run = Pass(self.anatomy, trials, held, {} if keep is None else keep, is_kept=keep is not None)
        tokens = self.tokens.expand(len(trials), -1).to(token_device(self.model))
        with use_attention(self.model, name, run.attend), ExitStack() as hooks:
            run.hook(self.model, hooks)
            self.model.get_submodule(self.anatomy.decoder)(input_ids=tokens, use_cache=False)
        return run.values["resid", self.anatomy.n_layers]


@contextmanager
def use_attention(model: PreTrainedModel, name: str, function: Callable[..., Any] | None = None) -> Iterator[None]:
    """Another attention for the length of a block: the library's eager one, or a function that is registered here."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    if name == NAME and function is not None:
        AttentionInterface.register(NAME, function)
        AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    set_attention(model, name)
    forget_lengths(model)
    try:
        yield
    finally:
        install(model)
