"""Measure the requests about a circuit.

**Knockout.** Is a circuit needed, or do other heads do its task when it is ablated? (Section 4.1 the other way round.)

The circuit's heads, each at the token of its group's role, are set to their means; all other heads are computed. A
circuit that does the task alone may still not be needed: other heads can carry the same answer, or take over. The
comparison is a random set of other heads with as many at each role in each layer.

**E'** (section 4.1). Does the residual stream at a token of the context still encode the slot of its box?

Pruning removes heads and keeps the residual stream, which may already hold what the heads of group E would write. This
experiment replaces that part and nothing else. In a circuit with all other heads mean-ablated, the stream at one token
of the context is set to that of the same word in a noise prompt, run in the same way, whose statements are moved by one
slot. The word is the same; only what the stream says about the slot of the statement differs. The edit is at the layers
whose heads are said to read the stream there.

If the stream of a model holds nothing but the word, the edit changes nothing. That is an outcome: the relative change
of the stream is part of the evidence, and not a gate.

**Pruning** by the published walk, and how much the result depends on the order. Walk through the list of heads once;
remove a head if the measure drops by less than 0.01 without it, and continue with the smaller circuit. The measure is
the mean logit of the answer, so the step is 0.01 logits on 50 prompts; for accuracy the drop is relative, before /
without - 1. Contributions (`rebinding.experiments.circuit.request`) are what the text describes instead.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.ablation import (
    CircuitVariant,
    ablation_edits,
    active_heads,
    by_variant,
    means_by_layer,
    measurer,
)
from rebinding.experiments.circuit.request import (
    KNOCKED,
    STREAM,
    Contributions,
    GroupKnockout,
    Hits,
    Knockout,
    Pruning,
    Stream,
    contributions,
    removed_sets,
)
from rebinding.experiments.random_draws import WALKS, draw_circuits
from rebinding.experiments.tokens import (
    MEASURES,
    Answers,
    as_table,
    blocks,
    full_model,
    positions,
    prompt_blocks,
    relative_change,
    token_batch,
)
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery import ActiveHeads, Edit, Read, Surgeon, in_layer
from rebinding.task.prompts import Encoded

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


def knock_out(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    answers: Answers,
    ids: Sequence[int],
    circuits: Mapping[str, Circuit],
    means: Sequence[Tensor],
    *,
    block: int | None = None,
) -> Evidence:
    """Ablate only the heads of each circuit: a row per circuit and prompt."""
    parts = []
    for where in prompt_blocks(surgeon, prompts, block):
        batch = prompts[where]
        source = torch.arange(len(batch)).repeat(len(circuits))
        take = answers.of(where).take(source)
        read = Read("logits", at=positions(batch, "readout")[source][:, None], reduce=take)
        ablated = active_heads(list(circuits.values()), batch, source)
        recording = surgeon.record(token_batch(batch), keep={"z"})
        (values,) = surgeon.run(recording, edits_at(means, ablated), [read], source=source, allow_noop=True)
        change = changes(recording.sites["z"], means, ablated, source)
        frame = as_table(list(circuits), ids[where], values).assign(relative_change=change.cpu().numpy())
        parts.append(KNOCKED.evidence(frame, {"ablation": "mean, of these heads alone"}))
    return merge(parts)


def changes(z: Sequence[Tensor], means: Sequence[Tensor], places: ActiveHeads, source: Tensor) -> Tensor:
    """The largest relative change from a head to its mean in each row (row,); rows continue `source`.

    A random set may already equal its means: some heads of a planted model give the same output everywhere. The circuit
    may not: its ablation would be a no-op and test nothing, and the gate `edits_change_values` fails.
    """
    largest = torch.zeros(source.numel())
    for layer, (own, mean) in enumerate(zip(z, means, strict=True)):
        of_layer = places.layers == layer
        if not bool(of_layer.any()):
            continue
        row, heads, tokens = (part[of_layer] for part in (places.rows, places.heads, places.positions))
        change = relative_change(mean[heads, tokens].to(own.device), own[source[row], heads, tokens])  # (place,)
        largest.scatter_reduce_(0, row, change.cpu(), "amax")
    return largest


def edits_at(means: Sequence[Tensor], places: ActiveHeads) -> list[Edit]:
    """Set z to its mean at the heads in `places`, and nowhere else."""
    edits = []
    for layer, mean in enumerate(means):
        of_layer = places.layers == layer
        if not bool(of_layer.any()):
            continue
        rows, row = places.rows[of_layer].unique(return_inverse=True)
        heads, head = places.heads[of_layer].unique(return_inverse=True)
        tokens, token = places.positions[of_layer].unique(return_inverse=True)
        where = torch.zeros(len(rows), len(heads), len(tokens), dtype=torch.bool)  # (row, head, token)
        where[row, head, token] = True
        value = mean[heads][:, tokens][None]  # (1, head, token, head_dim)
        edits.append(Edit("z", value, at=tokens, head=in_layer(layer, heads), rows=rows, where=where))
    return edits


MARGIN = MEASURES.index("margin")


def exchange_stream(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    noise: Sequence[Encoded],
    answers: Answers,
    ids: Sequence[int],
    circuit: Circuit,
    means: Sequence[Tensor],
    *,
    role: str,
    layers: Sequence[int],
    block: int | None = None,
) -> Evidence:
    """The answer's margin in a circuit before and after the noise's stream is set at `role`: a row per prompt."""
    parts = []
    for where in prompt_blocks(surgeon, prompts, block):
        batch, n = prompts[where], len(prompts[where])
        places = positions(batch, role)  # (prompt,)
        streams = _streams(surgeon, batch, circuit, means, places, layers)
        noise_streams = _streams(surgeon, noise[where], circuit, means, positions(noise[where], role), layers)
        ablation = ablation_edits(means, active_heads([circuit], batch, torch.arange(n)), n)
        stream = [
            Edit("resid", value, at=places[:, None], layer=layer)
            for layer, value in zip(layers, noise_streams, strict=True)
        ]
        take, readout = answers.of(where).take(torch.arange(n)), positions(batch, "readout")[:, None]
        read = Read("logits", at=readout, reduce=take)
        recording = surgeon.record(token_batch(batch))
        (values,) = surgeon.sweep(recording, [ablation, ablation + stream], [read], allow_noop=True)
        change = torch.stack(
            [relative_change(new, old)[:, 0] for new, old in zip(noise_streams, streams, strict=True)]
        ).amax(0)  # (prompt,)
        before, after = values[..., MARGIN].cpu()
        rows = {
            "prompt": ids[where],
            "before": before.numpy(),
            "after": after.numpy(),
            "relative_change": change.cpu().numpy(),
        }
        parts.append(STREAM.evidence(pd.DataFrame(rows), {"ablation": "mean", "token": role, "layers": list(layers)}))
    return merge(parts)


def _streams(
    surgeon: Surgeon,
    prompts: Sequence[Encoded],
    circuit: Circuit,
    means: Sequence[Tensor],
    at: Tensor,
    layers: Sequence[int],
) -> list[Tensor]:
    """The residual stream at each layer's input, at one token of each prompt, in the circuit: (prompt, 1, hidden)."""
    edits = ablation_edits(means, active_heads([circuit], prompts, torch.arange(len(prompts))), len(prompts))
    reads = [Read("resid", at=at[:, None], layer=layer) for layer in layers]
    return surgeon.run(surgeon.record(token_batch(prompts)), edits, reads, allow_noop=True)


HIT = MEASURES.index("hit")


def measure_pruning(bench: Workbench, request: Pruning) -> Evidence:
    """A row per order and head; every order has its own prompts, an equal part of all. As many orders walk in parallel
    as the surgeon takes prompts at once."""
    prompts, ids = bench.prompts.encode(request.prompts).prompts, request.prompts.ids
    means, n = means_by_layer(bench, request.means), len(ids) // request.orders
    circuits, rows = in_orders(Circuit(request.circuit), request.orders), []
    for part in blocks(len(circuits), max(1, bench.surgeon.prompts_at_once(len(prompts[0])) // n)):
        where = slice(part.start * n, part.stop * n)
        answers = bench.prompts.answers(prompts[where], request.answers)
        score = mean_of(measurer(bench.surgeon, prompts[where], answers, means, apart=True), request.by)
        full = full_model(bench.surgeon, prompts[where], answers, ids[where]).rows.sort_values("prompt")[request.by]
        for number, walked in enumerate(walk(circuits[part], score, threshold=request.step)):
            full_model_score = full[number * n : (number + 1) * n].mean()
            columns = {"order": part.start + number, "full_model": full_model_score}
            rows += [{**trial.head._asdict(), **columns, **trial.columns} for trial in walked.trials]
    return Evidence(request.KIND.name, pd.DataFrame(rows), {})


def mean_of(measure: Callable[[Sequence[Circuit]], Tensor], by: str) -> Score:
    """A function that gives the mean of one measure over prompts, out of one that gives all measures."""
    return lambda circuits: measure(circuits)[..., MEASURES.index(by)].mean(dim=1).tolist()


def measure_contributions(bench: Workbench, request: Contributions) -> Evidence:
    """Measure block by block, so that only the recordings of one block are in memory."""
    prompts, circuit, means = (
        bench.prompts.encode(request.prompts).prompts,
        Circuit(request.circuit),
        means_by_layer(bench, request.means),
    )
    removed, frames = removed_sets(circuit, request.random_sets), []
    for where in prompt_blocks(bench.surgeon, prompts):
        measure = measurer(bench.surgeon, prompts[where], bench.prompts.answers(prompts[where], request.answers), means)
        frames.append(contributions(circuit, _hits(measure), removed, request.prompts.ids[where]))
    return request.KIND.evidence(pd.concat(frames, ignore_index=True), {})


def _hits(measure: Callable[[Sequence[Circuit]], Tensor]) -> Hits:
    """A function that gives the hits of circuits, out of one that gives all measures."""
    return lambda circuits: measure(circuits)[..., HIT]  # (circuit, prompt)


def measure_knockout(bench: Workbench, request: Knockout) -> Evidence:
    prompts, ids, circuit = bench.prompts.encode(request.prompts).prompts, request.prompts.ids, Circuit(request.circuit)
    answers, group = bench.prompts.answers(prompts), request if isinstance(request, GroupKnockout) else None
    free = [head for head in bench.surgeon.anatomy.heads if group is None or head not in group.spared]
    random_circuits = draw_circuits(circuit, free, draws=request.draws, match="role_and_layer", exclude=True)
    removed = {CircuitVariant("circuit"): circuit}
    removed |= {CircuitVariant("random", draw=number): drawn for number, drawn in enumerate(random_circuits)}
    if group is not None:
        removed |= {
            CircuitVariant("less", head.group, head.layer, head.head): Circuit((head,)) for head in circuit.heads
        }
    variants, named = list(removed), {str(number): heads for number, heads in enumerate(removed.values())}
    of_circuits = knock_out(bench.surgeon, prompts, answers, ids, named, means_by_layer(bench, request.means))
    full = full_model(bench.surgeon, prompts, answers, ids, keep={"z"})
    return by_variant(request.KIND, variants, replace(full, rows=full.rows.assign(relative_change=0.0)), of_circuits)


def measure_stream(bench: Workbench, request: Stream) -> Evidence:
    pairs, means = bench.prompts.encode(request.prompts), means_by_layer(bench, request.means)
    answers, circuit = bench.prompts.answers(pairs.prompts, request.answers), Circuit(request.circuit)
    return exchange_stream(
        bench.surgeon,
        pairs.prompts,
        pairs.counterfactuals,
        answers,
        request.prompts.ids,
        circuit,
        means,
        role=request.role,
        layers=request.layers,
    )


Score = Callable[[Sequence[Circuit]], list[float]]
"""Scores of many circuits, so that they can be one batch."""


@dataclass(frozen=True)
class PruningTrial:
    """One step of a walk: the measure with and without a head, the drop, and whether the head was removed."""

    head: CircuitHead
    before: float
    without: float
    drop: float
    removed: bool

    @property
    def columns(self) -> dict[str, float | bool]:
        """The columns of a table, except those of the head."""
        return {"before": self.before, "drop": self.drop, "removed": self.removed}


@dataclass(frozen=True)
class Pruned:
    """The pruned circuit, and every trial of the walk."""

    circuit: Circuit
    trials: tuple[PruningTrial, ...]


def _drop(before: float, without: float, relative: bool) -> float:
    if not relative:
        return before - without
    return float("inf") if without == 0 else before / without - 1


def in_orders(circuit: Circuit, orders: int, seed: int = WALKS) -> list[Circuit]:
    """The circuit in the given order of its heads, and in shuffled orders."""
    generator = random.Random(seed)
    circuits = [circuit]
    for _ in range(orders - 1):
        shuffled = list(circuit.heads)
        generator.shuffle(shuffled)
        circuits.append(Circuit(tuple(shuffled), circuit.settings))
    return circuits


def walk(circuits: Sequence[Circuit], score: Score, *, threshold: float = 0.01, relative: bool = False) -> list[Pruned]:
    """Walk through circuits of equal size in parallel: the trials of a step are one batch."""
    remaining, current = list(circuits), score(circuits)
    trials: list[list[PruningTrial]] = [[] for _ in circuits]
    for step in zip(*(circuit.heads for circuit in circuits), strict=True):
        shorter = [circuit.without([head]) for circuit, head in zip(remaining, step, strict=True)]
        for number, without in enumerate(score(shorter)):
            drop = _drop(current[number], without, relative)
            trials[number].append(PruningTrial(step[number], current[number], without, drop, drop < threshold))
            if drop < threshold:
                remaining[number], current[number] = shorter[number], without
    return [Pruned(circuit, tuple(steps)) for circuit, steps in zip(remaining, trials, strict=True)]
