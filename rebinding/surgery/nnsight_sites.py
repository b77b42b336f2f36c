"""The sites as nnsight locations, and the code that a trace runs inside the model's forward pass.

A model of a trace is local or remote; models that cannot run remotely are refused.

This module may run on another machine: it is sent as source, with a plan of plain dictionaries and tensors, and returns
tensors. So it imports no edits, reads or surgeons, and keeps no state.

nnsight derives the names below from the library's source of the attention module and of its eager attention function.
They are no stable interface of either library; a test writes random values at each and checks that logits change.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import nnsight
import torch
from nnsight import NNsight, TransformersModel
from nnsight.intervention.envoy import Envoy
from nnsight.tracing.backend import Backend
from torch import Tensor
from transformers import PreTrainedModel

from rebinding.surgery.attention import attention_of, set_attention
from rebinding.surgery.plan import changed_rows
from rebinding.surgery.sites import SurgeryError

Remote: TypeAlias = bool | Literal["local"] | Backend
"""False: in this process. True: on NDIF. "local": here, but serialised as for NDIF. Or another nnsight backend."""

EAGER = "eager"


def wrapped(model: PreTrainedModel | TransformersModel, remote: Remote) -> Any:
    """The model wrapped for nnsight, able to run where `remote` says."""
    if remote is False:
        return model if isinstance(model, Envoy) else NNsight(model)
    nnsight.register("rebinding")
    if not isinstance(model, TransformersModel):
        model = _by_name(model)
    if model.attn_implementation != EAGER:
        raise SurgeryError(
            f"the model runs on attention {model.attn_implementation!r} and a server would use the same. A "
            "function registered here does not exist there, and only the library's eager attention shows its parts. "
            "Wrap the model with TransformersModel(name, task='text-generation', attn_implementation='eager')."
        )
    return model


def _by_name(model: PreTrainedModel) -> TransformersModel:
    name = str(getattr(model.config, "name_or_path", "") or "")
    if not name or Path(name).exists():
        place = f"comes from the folder {name}" if name else "was built here"
        raise SurgeryError(
            f"a server finds its model by Hub id, and this {type(model).__name__} {place}. Load it by its Hub id, or "
            "pass a TransformersModel that names one."
        )
    revision = getattr(model.config, "_commit_hash", None)
    return TransformersModel(name, revision=revision, task="text-generation", attn_implementation=EAGER)


@contextmanager
def library_attention(model: Any) -> Iterator[None]:
    """Run a model on the library's own eager attention inside the block, whatever it runs on outside."""
    previous = attention_of(model)
    if previous == EAGER:
        yield
        return
    try:
        set_attention(model, EAGER)
        if attention_of(model) != EAGER:
            raise SurgeryError(f"{type(model).__name__} cannot switch from attention {previous!r} to eager")
        yield
    finally:
        set_attention(model, previous)


ATTENTION_CALL = "attention_interface_1"
"""In the attention module: the call of the attention function."""

ROTATION_CALL = "apply_rotary_pos_emb_0"
"""In the attention module: the call that rotates queries and keys."""

ROTATION = "apply_rotary_pos_emb"
"""The name of the rotating function in the file that defines the attention module."""

IN_ATTENTION = {
    "k_rot": ("repeat_kv_0", "output"),
    "v_seen": ("repeat_kv_1", "output"),
    "q_rot": ("torch_matmul_0", "input"),
    "scores": ("nn_functional_softmax_0", "input"),
    "pattern": ("nn_functional_dropout_0", "output"),
}
"""In the eager attention function: the operation of a site, and which end of it."""

ORDER = ("resid", "q", "k", "v", "k_rot", "v_seen", "q_rot", "scores", "pattern", "z", "resid_mid", "mlp_out")
"""The sites of a layer in the order in which a forward pass reaches them."""


class Write(TypedDict):
    """An edit; `index` picks (row, [head,] position) of its site, `reached` says in which of those rows a read can see
    it; `own`: it acts on query heads' own raw keys.
    """

    index: tuple[Tensor, ...]
    reached: Tensor
    value: Tensor
    where: Tensor | None
    add: bool
    own: bool


class LayerShape(TypedDict):
    """Paths and sizes of the parts of a layer.

    `modules` names, by site, a module and which end of it; that of `resid_mid` puts out what attention adds, before the
    family's `factor`. `slices` are start, stop and width: a module's numbers are
    blocks of this width, and a site is start:stop of each.
    """

    attention: str
    modules: dict[str, tuple[str, str]]
    slices: dict[str, tuple[int, int, int]]
    n_heads: int
    group: int
    head_dim: int
    key_norm: str
    factor: float


class ModelShape(TypedDict):
    """Paths and sizes of the parts of a model; `streams` counts its parallel residual streams."""

    layers: str
    streams: int
    parts: list[LayerShape]


class TracePlan(TypedDict):
    """One trace: what to write and what to return, by layer and site.

    `source` is the recorded prompt of each row; `frozen`, if attention is, that recording's z: by layer, (prompt, head,
    position, head_dim). `sums` is the rounding that does not count as a change (`rebinding.surgery.plan`).
    """

    shape: ModelShape
    writes: dict[tuple[int, str], list[Write]]
    reads: list[tuple[int, str, tuple[Tensor, ...]]]
    source: Tensor
    frozen: list[Tensor] | None
    sums: float


class TraceOutcome(TypedDict):
    """Values read, by place in the plan; whether a write changed a value, by row; `own_keys`, between projection and
    rotation: the keys that each query head sees, and where (row, head, position) they are not those of its group.
    """

    reads: dict[int, Tensor]
    changed: Tensor
    own_keys: tuple[Tensor, Tensor] | None


def carry_out(model: Any, plan: TracePlan) -> TraceOutcome:
    """The body of a trace: walk through the forward pass in its own order, writing and reading where the plan says."""
    shape, last = plan["shape"], len(plan["shape"]["parts"])
    outcome: TraceOutcome = {
        "reads": {},
        "changed": torch.zeros(plan["source"].numel(), dtype=torch.bool),  # (row,)
        "own_keys": None,
    }
    layers = part(model, shape["layers"])
    for layer in range(last):
        if sites_of(plan, layer) & set(IN_ATTENTION):
            part(layers[layer], shape["parts"][layer]["attention"]).source  # noqa: B018  # must be accessed before the module runs
    resid = None
    for layer in range(last):
        sites = sites_of(plan, layer)
        if "resid_mid" in sites:
            sites.add("resid")  # its value is needed
        for site in (site for site in ORDER if site in sites):
            if site == "k_rot" and outcome["own_keys"] is not None:
                own_shape = shape["parts"][layer]
                attention = part(layers[layer], own_shape["attention"])
                outcome["own_keys"] = rotate_own_keys(attention, own_shape, outcome["own_keys"])
            resid = visit(layers[layer], plan, outcome, layer, site, resid)
    if "resid" in sites_of(plan, last):
        visit(layers[last - 1], plan, outcome, last, "resid", None)
    if "logits" in sites_of(plan, last):
        apply_plan(plan, outcome, last, "logits", model.output.logits)
    return outcome


def sites_of(plan: TracePlan, layer: int) -> set[str]:
    """The sites of a layer at which there is something to do."""
    sites = {site for at, site in plan["writes"] if at == layer}
    sites |= {site for at, site, _ in plan["reads"] if at == layer}
    if any(write["own"] for write in plan["writes"].get((layer, "k"), [])):
        sites.add("k_rot")
    is_frozen = plan["frozen"] is not None and layer < len(plan["shape"]["parts"])
    return sites | ({"z"} if is_frozen else set())


def part(parent: Any, path: str) -> Any:
    """A module below another one, by path."""
    for name in path.split("."):
        parent = getattr(parent, name)
    return parent


def visit(layer: Any, plan: TracePlan, outcome: TraceOutcome, number: int, site: str, resid: Any) -> Any:
    """Pass the value at a site of a layer to `apply_plan`, and put the result back if it is a new tensor. Takes and
    returns the layer's residual input, once it is known."""
    shape = plan["shape"]["parts"][min(number, len(plan["shape"]["parts"]) - 1)]
    if site in IN_ATTENTION:
        operation, end = IN_ATTENTION[site]
        function = getattr(part(layer, shape["attention"]).source, ATTENTION_CALL).source
        place = getattr(function, operation)
    else:
        last = len(plan["shape"]["parts"])
        path, end = ("", "output" if number == last else "input") if site == "resid" else shape["modules"][site]
        place = part(layer, path) if path else layer
    raw = getattr(place, end)
    own = raw[0] if isinstance(raw, tuple) else raw  # an MLP with experts gives their scores too
    is_middle = site == "resid_mid"
    before = resid + own * shape["factor"] if is_middle else as_site(own, plan, shape, site)
    after = apply_plan(plan, outcome, number, site, before)
    if after is not before:
        new = (after - resid) / shape["factor"] if is_middle else as_own(after, own, plan, shape, site)
        setattr(place, end, (new, *raw[1:]) if isinstance(raw, tuple) else new)
    return after if site == "resid" else resid


def as_site(own: Tensor, plan: TracePlan, shape: LayerShape, site: str) -> Tensor:
    """The model's own tensor as (row, head, position, width), or (row, position, width) without heads."""
    if site == "resid" and plan["shape"]["streams"] > 1:  # (stream, row, position, width)
        return torch.cat(own.unbind(), dim=-1)
    if site == "mlp_out":  # (row, position, width) or (row x position, width)
        return own.reshape(plan["source"].numel(), -1, own.shape[-1])
    if site in shape["slices"]:
        start, stop, width = shape["slices"][site]
        chosen = own.flatten(2).unflatten(-1, (-1, width))[..., start:stop].flatten(2)
        per_head: Tensor = chosen.unflatten(-1, (-1, shape["head_dim"]))
        return per_head.transpose(1, 2)
    if site in IN_ATTENTION and own.shape[1] != shape["n_heads"]:
        raise RuntimeError(
            f"{site} has {own.shape[1]} heads here, and the model {shape['n_heads']}: its heads are spread over "
            "devices. Run it without tensor parallelism, or use only resid, q, k, v, z, mlp_out and logits."
        )
    return own


def as_own(value: Tensor, own: Tensor, plan: TracePlan, shape: LayerShape, site: str) -> Tensor:
    """The inverse of `as_site`."""
    if site == "resid" and plan["shape"]["streams"] > 1:
        return torch.stack(value.chunk(plan["shape"]["streams"], dim=-1))
    if site == "mlp_out":
        return value.reshape(own.shape)
    if site not in shape["slices"]:
        return value
    start, stop, width = shape["slices"][site]
    blocks = own.flatten(2).unflatten(-1, (-1, width))  # (row, position, block, width)
    chosen = value.transpose(1, 2).flatten(2).unflatten(-1, (blocks.shape[2], -1))
    return torch.cat([blocks[..., :start], chosen, blocks[..., stop:]], dim=-1).reshape(own.shape)


def apply_plan(plan: TracePlan, outcome: TraceOutcome, layer: int, site: str, value: Tensor) -> Tensor:
    """Write what the plan writes at a site, then read what it reads. Returns the same object if nothing is written."""
    writes = plan["writes"].get((layer, site), [])
    own = [write for write in writes if write["own"]]
    if site == "z" and plan["frozen"] is not None:
        value = plan["frozen"][layer].to(value)[plan["source"].to(value.device)]
    if site == "k_rot" and outcome["own_keys"] is not None:
        value = with_own_keys(value, *outcome["own_keys"])
        outcome["own_keys"] = None
    edited = value
    for write in writes:
        edited = edited if write["own"] else written(edited, write)
    if own:
        size = plan["shape"]["parts"][layer]["group"]
        keys, where = own_copies(edited, own, size)
        outcome["own_keys"] = keys, where
        note_changes(plan, outcome, site, own, edited.repeat_interleave(size, dim=1), keys)
    note_changes(plan, outcome, site, [write for write in writes if not write["own"]], value, edited)
    for number, (at, name, index) in enumerate(plan["reads"]):
        if (at, name) == (layer, site):
            outcome["reads"][number] = edited[tuple(axis.to(edited.device) for axis in index)].detach()
    return edited


def note_changes(
    plan: TracePlan, outcome: TraceOutcome, site: str, writes: list[Write], before: Tensor, after: Tensor
) -> None:
    """Note the rows in which some writes changed a value that a read can see."""
    for write in writes:
        index = tuple(axis.to(before.device) for axis in write["index"])
        mode: Literal["set", "add"] = "add" if write["add"] and len(writes) == 1 else "set"
        changed = changed_rows(before, after, index, site=site, mode=mode, sums=plan["sums"]).cpu()
        outcome["changed"][write["index"][0].flatten().cpu()[changed & write["reached"].cpu()]] = True


def written(value: Tensor, write: Write) -> Tensor:
    """A new tensor that differs from `value` in the cells of a write."""
    index = tuple(axis.to(value.device) for axis in write["index"])
    fill, old, where = write["value"].to(value), value[index], write["where"]
    fill = old + fill if write["add"] else fill
    result = value.clone()
    result[index] = fill if where is None else torch.where(where.to(value.device)[..., None], fill, old)
    return result


def own_copies(group: Tensor, writes: list[Write], size: int) -> tuple[Tensor, Tensor]:
    """The keys or values (row, kv head, position, head_dim) of each query head after the writes to its own copy, and
    where they differ from those of its group.
    """
    shared = group.repeat_interleave(size, dim=1)  # (row, head, position, head_dim)
    own = shared
    for write in writes:
        own = written(own, write)
    return own, (own != shared).any(dim=-1)


def rotate_own_keys(attention: Any, shape: LayerShape, own: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Raw keys that query heads own, after the model's own key norm and rotation, and where they are."""
    raw, where = own
    normed = getattr(attention, shape["key_norm"])(raw) if shape["key_norm"] else raw
    (_, keys, *angles), options = getattr(attention.source, ROTATION_CALL).inputs
    if keys.shape[-1] != normed.shape[-1]:
        raise RuntimeError(
            f"the model rotates {keys.shape[-1]} of {normed.shape[-1]} dimensions of a key: a raw key cannot be edited "
            "for one query head alone. Edit k_rot instead."
        )
    rotate = getattr(sys.modules[type(attention._module).__module__], ROTATION)
    return rotate(normed, normed, *angles, **options)[1], where


def with_own_keys(value: Tensor, keys: Tensor, where: Tensor) -> Tensor:
    """Keys with the edited keys of single query heads put in; all other keys must equal the model's own."""
    gap = torch.where(where[..., None], 0, keys - value).detach().abs().amax()
    if bool(gap > 8 * torch.finfo(value.dtype).eps * value.detach().abs().amax()):
        raise RuntimeError("the model does more to a key than norm and rotation: edit k_rot instead of the raw key")
    return torch.where(where[..., None], keys, value)
