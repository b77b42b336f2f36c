"""The reference: a full forward of the library's own model, with plain hooks where the hand-written tables say.

No recording, no window, no anatomy. Sites outside attention are edited by hooks on modules, those inside it by an
attention function that is written out: what the library's eager functions compute, with a look at every site.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rebinding.surgery.sites import Edit, Heads, Index, Read
from tests.families.models import N_HEADS
from tests.families.tables import TABLES, Layer, Table

FrozenOutputs = dict[int, Tensor]
"""What every layer's heads (the input of the output projection), or its mixer, give in the unedited run."""


@dataclass(eq=False)
class Forward:
    """One forward pass over a batch of rows, with its edits, noting what is read."""

    table: Table
    edits: Sequence[Edit]
    reads: Sequence[Read]
    frozen: FrozenOutputs | None = None
    answers: dict[int, Tensor] = field(default_factory=dict)
    outputs: FrozenOutputs = field(default_factory=dict)
    raw: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    modules: dict[int, Any] = field(default_factory=dict)
    positions: Any = None

    def at(self, site: str, layer: int, value: Tensor) -> Tensor:
        """Edit a site (row, [head,] token, width), then note the reads of it."""
        copies = self._own_copies(site, layer)
        value = value if copies is None else copies
        for edit in self._edits_of(site, layer):
            value = value if edit.scope == "head" else edit_cells(value, edit)
        for number, read in enumerate(self.reads):
            if read.site == site and (site == "logits" or self.table.source_of(site, layer_of(read)) == layer):
                self.answers[number] = read_cells(value, read)
        return value

    def _edits_of(self, site: str, layer: int) -> list[Edit]:
        return [edit for edit in self.edits if edit.site == site and (layer_of(edit) == layer or site == "logits")]

    def _own_copies(self, site: str, layer: int) -> Tensor | None:
        """Keys or values as query heads see them after edits of their raw copies; None without such edits.

        Edits of reused keys and values change the copies of the layer that they name, and no other's.
        """
        letter = {"k_rot": "k", "v_seen": "v"}.get(site, "")
        source = self.table.source_of(letter, layer) if letter else layer
        edits = [edit for edit in self._edits_of(letter, layer) if edit.scope == "head" or source != layer]
        if not edits:
            return None
        size, raw = self.table.layers[layer].group, self.raw[letter, source]  # (row, kv head, token, head_dim)
        for edit in edits:
            raw = edit_cells(raw, edit) if edit.scope == "group" else raw
        copies = raw.repeat_interleave(size, dim=1)  # (row, head, token, head_dim)
        for edit in edits:
            copies = edit_cells(copies, edit) if edit.scope == "head" else copies
        module = self.modules[source]
        return rotate(module, copies, self.positions, "k") if letter == "k" else norm_values(module, copies)

    def project(self, site: str, layer: int, value: Tensor) -> Tensor:
        """A projection's output, or a norm's input, with its site edited."""
        projection = getattr(self.table.layers[layer], site)
        value = value.clone()
        place = projection.view(value)  # (row, token, head, head_dim)
        place.copy_(self.at(site, layer, place.transpose(1, 2)).transpose(1, 2))
        self.raw[site, layer] = place.transpose(1, 2)
        return value

    def mix(self, layer: int, module: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        """The input of the output projection: z of all heads, side by side."""
        z = args[0].unflatten(-1, (N_HEADS, -1)).transpose(1, 2)  # (row, head, token, head_dim)
        self.outputs[layer] = z
        z = self.at("z", layer, z if self.frozen is None else self.frozen[layer])
        return (z.transpose(1, 2).flatten(2),)

    def carry(self, layer: int, module: Any, args: Any, output: Tensor) -> Tensor:
        """A mixer's output (row, token, hidden), which frozen attention holds."""
        self.outputs[layer] = output
        return output if self.frozen is None else self.frozen[layer]

    def write(self, layer: int, module: Any, args: Any, output: Any) -> Any:
        """The MLP's output; some families return it with router scores, some with all rows' tokens in one axis."""
        value = output[0] if isinstance(output, tuple) else output
        rows = self.resid_shape[:2]
        edited = self.at("mlp_out", layer, value.reshape(*rows, -1)).reshape(value.shape)
        return (edited, *output[1:]) if isinstance(output, tuple) else edited

    def meet(self, layer: int, module: Any, args: tuple[Tensor]) -> tuple[Tensor]:
        """The residual stream before the MLP's norm; a change of it passes the MLP by as well (`skip`)."""
        value = args[0].reshape(self.resid_shape)
        edited = self.at("resid_mid", layer, value)
        self.change = edited - value
        return (edited.reshape(args[0].shape),)

    def skip(self, layer: int, module: Any, args: Any, output: Any) -> Any:
        """A layer's output, with the change of the residual stream before the MLP added."""
        value = (output[0] if isinstance(output, tuple) else output) + self.change
        return (value, *output[1:]) if isinstance(output, tuple) else value

    def stream(self, layer: int, value: Tensor) -> Tensor:
        """The residual stream (row, token, hidden); streams in parallel stand side by side."""
        if self.table.streams == 1:
            self.resid_shape = value.shape
            return self.at("resid", layer, value)
        side_by_side = torch.cat(list(value), dim=-1)  # (row, token, stream x hidden)
        self.resid_shape = side_by_side.shape
        return torch.stack(self.at("resid", layer, side_by_side).chunk(self.table.streams, dim=-1))

    def enter(self, layer: int, module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """A layer's input."""
        if args:
            return (self.stream(layer, args[0]), *args[1:]), kwargs
        return args, kwargs | {"hidden_states": self.stream(layer, kwargs["hidden_states"])}

    def leave(self, module: Any, args: Any, output: Any) -> Any:
        """The last layer's output, from which the logits are computed."""
        n = len(self.table.layers)
        return (self.stream(n, output[0]), *output[1:]) if isinstance(output, tuple) else self.stream(n, output)

    def look(self, layer: int, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Note the attention module that runs, and the positions it rotates by."""
        self.modules[layer], self.positions = module, kwargs.get("position_embeddings")

    def install(self, hooks: ExitStack, number: int, layer: Any, parts: Layer) -> None:
        """The hooks of one layer."""

        def after(module: str, hook: Any) -> None:
            hooks.callback(layer.get_submodule(module).register_forward_hook(hook).remove)

        def before(module: str, hook: Any) -> None:
            hooks.callback(layer.get_submodule(module).register_forward_pre_hook(hook).remove)

        hooks.callback(layer.register_forward_pre_hook(partial(self.enter, number), with_kwargs=True).remove)
        after(parts.mlp, partial(self.write, number))
        if self.table.middle is not None:
            before(self.table.middle, partial(self.meet, number))
            hooks.callback(layer.register_forward_hook(partial(self.skip, number)).remove)
        if parts.mixer is not None:
            after(parts.mixer, partial(self.carry, number))
            return
        for site in ("q", "k", "v"):
            if (projection := getattr(parts, site)) is not None:
                edit = partial(self.project, site, number)
                if projection.shape:
                    after(projection.module, lambda _, args, output, edit=edit: edit(output))
                else:
                    before(projection.module, lambda _, args, edit=edit: (edit(args[0]),))
        before(parts.output, partial(self.mix, number))
        attention = layer.get_submodule(parts.attention)
        hooks.callback(attention.register_forward_pre_hook(partial(self.look, number), with_kwargs=True).remove)


@torch.no_grad()
def run_with_hooks(
    model: PreTrainedModel,
    family: str,
    tokens: Tensor,
    edits: Sequence[Edit],
    reads: Sequence[Read],
    *,
    frozen: bool = False,
    fixed: FrozenOutputs | None = None,
) -> list[Tensor]:
    """What the reads return when `tokens` (row, token) run with the edits. `frozen` holds every head's output and every
    mixer's output at the unedited run; `fixed` at given values."""
    if frozen:
        clean = Forward(TABLES[family], [], [])
        _run(model, tokens, clean)
        fixed = clean.outputs
    forward = Forward(TABLES[family], edits, reads, fixed)
    logits = _run(model, tokens, forward)
    forward.at("logits", len(forward.table.layers), logits)
    return [forward.answers[number] for number in range(len(reads))]


def _run(model: PreTrainedModel, tokens: Tensor, forward: Forward) -> Tensor:
    layers: Any = model.get_submodule(forward.table.path)
    with ExitStack() as hooks:
        hooks.enter_context(replaced_attention(model, forward.at))
        for number, (layer, parts) in enumerate(zip(layers, forward.table.layers, strict=True)):
            forward.install(hooks, number, layer, parts)
        hooks.callback(layers[-1].register_forward_hook(forward.leave).remove)
        logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def layer_of(item: Edit | Read) -> int:
    """The only layer of an edit or a read."""
    if item.head is None:
        return -1 if item.layer is None else item.layer
    (layer,) = set(_pairs(item.head)[..., 0].flatten().tolist())
    return int(layer)


def heads_of(item: Edit | Read) -> Tensor | None:
    """Its heads (1 or row, head)."""
    return None if item.head is None else _pairs(item.head)[..., 1]


def positions_of(item: Edit | Read) -> Tensor:
    """Its positions (1 or row, position)."""
    table = torch.as_tensor(cast("Index", item.at))
    return table.reshape(-1, table.shape[-1] if table.ndim else 1)


def _pairs(head: Heads) -> Tensor:
    pairs = torch.as_tensor(head)
    return pairs.reshape(-1, *pairs.shape[-2:]) if pairs.ndim > 1 else pairs.reshape(1, 1, 2)  # (1 or row, head, 2)


def edit_cells(value: Tensor, edit: Edit) -> Tensor:
    """A copy of a site (row, [head,] token, width) with the cells of an edit rewritten, one by one."""
    value = value.clone()
    rows = list(range(value.shape[0])) if edit.rows is None else torch.as_tensor(edit.rows).tolist()
    table = heads_of(edit)
    heads = None if table is None else table.expand(len(rows), -1).tolist()
    positions = positions_of(edit).expand(len(rows), -1).tolist()
    inner = (len(positions[0]),) if heads is None else (len(heads[0]), len(positions[0]))
    new = edit.value.expand(len(rows), *inner, value.shape[-1])
    mask = torch.ones(inner, dtype=torch.bool) if edit.where is None else edit.where
    mask = mask.expand(len(rows), *inner)
    for i, row in enumerate(rows):
        for j, position in enumerate(positions[i]):
            for h, head in enumerate(heads[i] if heads else [None]):
                cell = (row, position) if head is None else (row, head, position)
                line = (i, j) if head is None else (i, h, j)
                if mask[line]:
                    value[cell] = value[cell] + new[line] if edit.mode == "add" else new[line]
    return value


def read_cells(value: Tensor, read: Read) -> Tensor:
    """The cells of a read: (row, [head,] position, width)."""
    n = value.shape[0]
    positions, heads = positions_of(read).expand(n, -1), heads_of(read)
    if heads is None:
        return torch.stack([value[row, positions[row]] for row in range(n)])
    heads = heads.expand(n, -1)
    return torch.stack([value[row][heads[row]][:, positions[row]] for row in range(n)])


# Attention written out

At: TypeAlias = Callable[[str, int, Tensor], Tensor]
"""Edits and notes a site's value (site, layer, value) and returns it."""


def attend(
    at: At,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    scaling: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """z (row, token, head, head_dim) and the pattern. A sink takes part in the softmax and is dropped after it."""
    layer, group = module.layer_idx, query.shape[1] // key.shape[1]
    query = at("q_rot", layer, query)  # (row, head, token, head_dim)
    key = at("k_rot", layer, key.repeat_interleave(group, dim=1))  # (row, head, token, head_dim)
    value = at("v_seen", layer, value.repeat_interleave(group, dim=1))  # (row, head, token, head_dim)
    scores = query @ key.transpose(2, 3) * scaling  # (row, head, query, key)
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    scores = at("scores", layer, scores + mask)
    if hasattr(module, "sinks"):
        sinks = module.sinks[None, :, None, None].expand(*scores.shape[:3], 1)  # (row, head, query, 1)
        pattern = torch.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)[..., :-1]
    else:
        pattern = torch.softmax(scores, dim=-1)
    pattern = at("pattern", layer, pattern)
    return (pattern @ value).transpose(1, 2), pattern


@contextmanager
def replaced_attention(model: PreTrainedModel, at: At) -> Iterator[None]:
    """A model on `attend` in place of its family's eager attention."""
    file: Any = sys.modules[type(model).__module__]
    original = file.eager_attention_forward

    def forward(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **settings: Any) -> Any:
        return attend(at, module, q, k, v, mask, scaling=settings["scaling"], softcap=settings.get("softcap"))

    file.eager_attention_forward = forward
    try:
        yield
    finally:
        file.eager_attention_forward = original


def rotate(module: Any, raw: Tensor, positions: Any, letter: str) -> Tensor:
    """Raw queries or keys (row, head, token, head_dim) after the family's own norm and RoPE of a whole row of heads."""
    file, kind = sys.modules[type(module).__module__], type(module).__name__
    if kind in ("GPT2Attention", "OPTAttention"):
        return raw * module.scaling if kind == "OPTAttention" and letter == "q" else raw
    if kind == "Llama4TextAttention":
        return _rotate_llama4(file, module, raw, positions, letter)
    if kind in ("StableLmAttention", "PhiAttention"):
        normed = _norm_heads(getattr(module, f"{letter}_layernorm"), raw)
        turned, rest = normed[..., : module.rotary_ndims], normed[..., module.rotary_ndims :]
        return torch.cat([file.apply_rotary_pos_emb(turned, turned, *positions)[0], rest], dim=-1)
    norm = getattr(module, f"{letter}_norm", None)
    normed = raw if norm is None else norm.forward(raw)  # its hooks belong to the model's own call
    if kind.startswith(("Gemma3n", "Gemma4")):
        rotated: Tensor = file.apply_rotary_pos_emb(normed, *positions)
        return rotated
    both: tuple[Tensor, Tensor] = file.apply_rotary_pos_emb(normed, normed, *positions)
    return both[0]


def _norm_heads(norm: Any, raw: Tensor) -> Tensor:
    """StableLM has a norm for every (KV) head; several query heads may share one. Phi has one for all."""
    if not hasattr(norm, "norms"):
        normed: Tensor = norm(raw)
        return normed
    group = raw.shape[1] // len(norm.norms)
    return torch.stack([norm.norms[head // group](raw[:, head]) for head in range(raw.shape[1])], dim=1)


def _rotate_llama4(file: Any, module: Any, raw: Tensor, positions: Any, letter: str) -> Tensor:
    """Layers with RoPE norm after it; in the others the query grows with its position."""
    if module.use_rope:
        per_token = raw.transpose(1, 2)  # (row, token, head, head_dim)
        rotated: Tensor = module.qk_norm(file.apply_rotary_emb(per_token, per_token, positions)[0]).transpose(1, 2)
        return rotated
    if letter == "k":
        return raw
    token = torch.arange(raw.shape[2], dtype=torch.float32)
    growth: Tensor = torch.log1p(torch.floor((token + 1) / module.floor_scale)) * module.attn_scale + 1  # (token,)
    return raw * growth[:, None].to(raw)


def norm_values(module: Any, raw: Tensor) -> Tensor:
    """Raw values (row, head, token, head_dim) as attention sees them: Gemma 3n and 4 norm them."""
    normed: Tensor = module.v_norm.forward(raw) if hasattr(module, "v_norm") else raw
    return normed
