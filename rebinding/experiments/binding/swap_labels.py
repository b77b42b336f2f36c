"""Keys at the labels of a swap: do they point at the partner's slot? Not simulated: the paper says nothing of them.

A prompt asks about a box of the swap: i is its partner's slot, which has the answer, and j its own. Exchanging the
mean keys of the two slots makes the label of slot j look like that of slot i, and the other way round. Queries, and the
keys at the context, stay as they are. Keys are the output of the projections, before any norm and before RoPE.

dR is that of section 5 with a label in the place of a slot's tokens: R = ln(M_j + e) - ln(M_i + e), with M_k the
attention of a head on the label that names the box of slot k; it is computed by head and then averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.experiments.binding.directions import edit_keys, read_vectors
from rebinding.experiments.binding.measure import run_variants
from rebinding.experiments.binding.summary import EPS, by_unit
from rebinding.experiments.prompts import DIRECTIONS_ID, Stories
from rebinding.experiments.tokens import positions, prompt_blocks
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.procedure import BindingConventions
from rebinding.surgery import SurgeryError
from rebinding.surgery.sites import Scope
from rebinding.task.boxes import labels_of
from rebinding.task.designs import Design
from rebinding.task.prompts import AnswerRule, Encoded
from rebinding.verdicts.estimates import Array

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


LABEL_EXCHANGE = Kind(
    "swap_labels",
    ("prompt", "i", "j", "draw", "layer", "head", "relative_change"),
    numbered=r"(before|after)_(label|logit)_[ij]",
    edit_columns=(),  # as in section 5: a direction of size zero is a finding
)
LABEL_VECTORS = Kind("swap_label_directions", ())
NAMED = ("swap_asked", "swap_partner")
"""Roles of prompts that ask about a box of the swap: its two labels."""
PROMPTS_OF_LABELS = 36
"""Prompts of a set of directions: 24 keys of every slot, since each prompt names two of three."""


@dataclass(frozen=True)
class LabelVectors(OnPrompts):
    """Mean keys of some heads at the labels of a swap, by the slot of the box that a label names."""

    KIND: ClassVar[Kind] = LABEL_VECTORS
    heads: tuple[Head, ...]


@dataclass(frozen=True)
class LabelExchange(OnPrompts):
    """The keys at both labels of a swap exchanged along their directions, once with every one of `batches`, which were
    measured on disjoint sets of prompts."""

    KIND: ClassVar[Kind] = LABEL_EXCHANGE
    batches: tuple[LabelVectors, ...]
    heads: tuple[Head, ...]
    scope: Scope
    answers: AnswerRule


def request_label_exchange(
    prompts: Stories, design: Design, circuit: Circuit, n: int, *, conventions: BindingConventions
) -> LabelExchange:
    """Request exchanges of keys of group B in counterbalanced stories, whatever the design of the run: they cross which
    label is named first with the slot of its box."""
    stories, heads = prompts.design("counterbalanced", split="evaluation"), circuit.group("B")
    starts = range(DIRECTIONS_ID, DIRECTIONS_ID + conventions.batches * 2 * PROMPTS_OF_LABELS, 2 * PROMPTS_OF_LABELS)
    return LabelExchange(
        prompts=prompts.draw_with(stories, prompts.evaluation, n, NAMED),
        batches=tuple(request_label_vectors(prompts, heads, start) for start in starts),
        heads=heads,
        scope=conventions.scope,
        answers=conventions.answers,
    )


def request_label_vectors(prompts: Stories, heads: Sequence[Head], first: int) -> LabelVectors:
    """Request directions from prompts with other words; two thirds of the ids ask about a box of the swap."""
    stories = prompts.design("counterbalanced", split="directions")
    return LabelVectors(prompts.draw_with(stories, first, PROMPTS_OF_LABELS, NAMED), tuple(heads))


LABELS = ("swap_first", "swap_second")


def measure_label_vectors(bench: Workbench, request: LabelVectors) -> Mapping[str, Tensor]:
    """Means by slot: (slot, head, head_dim), in float32."""
    prompts = bench.prompts.encode(request.prompts).prompts
    slots = torch.tensor([named_slots(encoded) for encoded in prompts])  # (prompt, label)
    tokens = torch.stack([positions(prompts, role) for role in LABELS], dim=1)  # (prompt, label)
    count = torch.bincount(slots.flatten(), minlength=len(prompts[0].prompt.story.contents))
    if not count.all():
        raise SurgeryError(
            f"{len(prompts)} prompts name slots {count.tolist()} times; give prompts that name every slot"
        )
    head_dim = max(bench.surgeon.anatomy.parts[layer].head_dim for layer, _ in request.heads)
    total = torch.zeros(len(count), len(request.heads), head_dim, dtype=torch.float64)
    for part in prompt_blocks(bench.surgeon, prompts):
        _, keys = read_vectors(bench.surgeon, prompts[part], tokens[part], request.heads)
        by_label = keys.transpose(1, 2).flatten(0, 1).double()  # (prompt x label, head, head_dim)
        total.index_add_(0, slots[part].flatten(), by_label)
    return {"k": (total / count[:, None, None]).float()}


def named_slots(encoded: Encoded) -> list[int]:
    """The slots of the two boxes that the swap names, in the order in which it names them."""
    operation = encoded.prompt.operation
    if operation is None:
        raise SurgeryError("a story without a swap names no boxes after its context; give stories with one swap")
    return [encoded.prompt.story.slot(label) for label in labels_of(operation)]


def measure_label_exchange(bench: Workbench, request: LabelExchange) -> Evidence:
    prompts = bench.prompts.encode(request.prompts).prompts
    means = torch.stack([bench.tensors(batch)["k"] for batch in request.batches])  # (draw, slot, head, head_dim)
    frames = [
        _run_block(bench, request, _cases(bench, request, prompts[part], request.prompts.ids[part]), means)
        for part in prompt_blocks(bench.surgeon, prompts)
    ]
    settings = {"heads": [list(head) for head in request.heads], "scope": request.scope, "draws": len(means)}
    return LABEL_EXCHANGE.evidence(pd.concat(frames, ignore_index=True), settings)


@dataclass(frozen=True, eq=False)
class LabelCases:
    """The prompts of a block with slots i and j, the labels that name them (case, 2) and their objects (case, 2)."""

    prompts: Sequence[Encoded]
    ids: Sequence[int]
    i: Tensor
    j: Tensor
    labels: Tensor
    objects: Tensor


def _cases(bench: Workbench, request: LabelExchange, prompts: Sequence[Encoded], ids: Sequence[int]) -> LabelCases:
    texts = [encoded.prompt for encoded in prompts]
    slots = torch.tensor([(text.answer_slot, text.query_slot) for text in texts])  # (case, i or j)
    words = [[text.story.objects[slot] for slot in pair] for text, pair in zip(texts, slots.tolist(), strict=True)]
    objects = [[bench.prompts.encoder.answer_token(word, request.answers) for word in pair] for pair in words]
    labels = torch.stack([positions(prompts, role) for role in ("swap_partner", "swap_asked")], dim=1)
    return LabelCases(prompts, ids, slots[:, 0], slots[:, 1], labels, torch.tensor(objects))


def _run_block(bench: Workbench, request: LabelExchange, cases: LabelCases, means: Tensor) -> pd.DataFrame:
    """All sets of directions as variants of one run, the unedited one first."""
    surgeon, heads = bench.surgeon, request.heads
    difference = means[:, cases.j] - means[:, cases.i]  # (draw, case, head, head_dim): makes label i look like label j
    shifts = torch.stack([difference, -difference], dim=3)  # (draw, case, head, i or j, head_dim)
    edits = [[edit_keys(surgeon.anatomy, heads, shift, at=cases.labels, scope=request.scope)] for shift in shifts]
    masses, logits = run_variants(surgeon, cases.prompts, [[], *edits], heads, cases.labels, cases.objects)
    largest = means.abs().amax(dim=(1, 2, 3))  # (draw,)
    change = shifts.abs().amax(dim=(2, 3, 4)) / largest[:, None]  # (draw, case)
    before, after = ((part[0], part[1:].flatten(0, 1)) for part in (masses, logits))
    return _table(request, cases, len(means), (before[0], after[0]), (before[1], after[1]), change.flatten())


def _table(
    request: LabelExchange,
    cases: LabelCases,
    draws: int,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    change: Tensor,
) -> pd.DataFrame:
    """One row per draw, case and head."""
    n, heads = len(cases.prompts), len(request.heads)
    by_case = {"prompt": torch.tensor(cases.ids), "i": cases.i, "j": cases.j}
    columns: dict[str, Any] = {name: np.repeat(np.tile(value, draws), heads) for name, value in by_case.items()}
    columns["draw"] = np.repeat(np.arange(draws), n * heads)
    columns |= {
        name: np.tile([head[at] for head in request.heads], draws * n) for at, name in enumerate(("layer", "head"))
    }
    columns["relative_change"] = np.repeat(change.numpy(), heads)
    for when, (masses, logits), copies in (("before", before, draws), ("after", after, 1)):
        for at, slot in enumerate("ij"):
            columns[f"{when}_label_{slot}"] = masses[:, :, at].repeat(copies, 1).flatten().numpy()
            columns[f"{when}_logit_{slot}"] = logits[:, at].repeat(copies).repeat_interleave(heads).numpy()
    return pd.DataFrame(columns)


CASE = ["prompt", "i", "j", "draw"]


def label_shift(evidence: Evidence, measure: str) -> Array:
    """`dR` or `dlogit`, (draw, unit); a unit is one example of every ordered pair of slots."""
    rows = evidence.rows
    mass = {name: np.log(rows[name] + EPS) for name in rows if str(name).startswith(("before_label", "after_label"))}
    ratio = {when: mass[f"{when}_label_j"] - mass[f"{when}_label_i"] for when in ("before", "after")}
    lead = {when: rows[f"{when}_logit_j"] - rows[f"{when}_logit_i"] for when in ratio}
    changes = {"dR": ratio["after"] - ratio["before"], "dlogit": lead["after"] - lead["before"]}
    table = rows[CASE].assign(**{measure: changes[measure]}).groupby(CASE, sort=False)[measure].mean()
    return by_unit(table.reset_index(), measure)
