"""Circuit evaluation: every head at its mean at every token but the circuit's, and pruning by what is left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.reference.naive.edits import ablated, answer_scores, mean_outputs
from tests.reference.naive.patching import Entry, Naive, entry, tokens
from tests.reference.naive.plain_model import Put
from tests.reference.naive.prompts import Record

Component: TypeAlias = tuple[str, str, int, int]
"""Group, role, layer, head."""
FORMS = {
    "aliases": ("object_token_with_space", "object_token_without_space"),
    "spaced_only": ("object_token_with_space",),
}
MEASURES = {
    "candidate_accuracy": "hit",
    "mean_label_logit": "label_logit",
    "mean_candidate_margin": "margin",
    "mean_label_prob": "prob",
}
THRESHOLD = 0.01


class Evaluation:
    """Circuits on the prompts of a design."""

    def __init__(self, naive: Naive, means_from: Sequence[Record]) -> None:
        self.naive = naive
        self.means = mean_outputs(naive.plain, map(tokens, means_from))

    @property
    def mean_z(self) -> Tensor:
        """(layer, token, head, head_dim)."""
        heads = self.naive.plain.heads
        return torch.stack([means.view(len(means), heads, -1) for means in self.means])

    def rows(self, records: Sequence[Record], form: str, circuit: Sequence[Component] | None) -> dict[str, list[float]]:
        """Label logit, margin, hit and probability of every prompt; no circuit at all is the full model."""
        if circuit is None:
            logits = torch.cat([self.naive.clean(record).logits for record in records])
        else:
            runs = [(tokens(record), self._ablated(record, circuit)) for record in records]
            logits = self.naive.plain.run(runs).logits
        measured = [_measured(line, record, form) for line, record in zip(logits, records, strict=True)]
        return {name: [row[name] for row in measured] for name in measured[0]}

    def _ablated(self, record: Record, circuit: Sequence[Component]) -> list[Put]:
        return ablated(self.means, [(layer, record["roles"][role], head) for _, role, layer, head in circuit])

    def averages(self, records: Sequence[Record], form: str, circuit: Sequence[Component] | None) -> dict[str, float]:
        rows = self.rows(records, form, circuit)
        return {name: sum(rows[column]) / len(records) for name, column in MEASURES.items()}


def _measured(logits: Tensor, record: Record, form: str) -> dict[str, float]:
    by_word = {word: {record[field][word] for field in FORMS[form]} for word in record["state_after_swap"].values()}
    answer = by_word.pop(record["answer"])
    scores = answer_scores(logits, answer, set().union(*by_word.values()))
    probability = scores.pop("probability")
    return {**scores, "hit": int(scores["margin"] > 0), "prob": probability}


def selected(scores: Mapping[str, Entry], k: Mapping[str, int], roles: Mapping[str, str], ids: Sequence[int]) -> Entry:
    """Per group the k most negative scores of its matrix; heads in both A and B are B's."""
    groups: dict[str, list[tuple[float, int, int]]] = {}
    for group, matrix in scores.items():
        lines = matrix["value"]["score"]
        ranked = [(score, layer, head) for layer, line in enumerate(lines) for head, score in enumerate(line)]
        groups[group] = sorted(ranked)[: k[group]]
    heads_of_b = {head[1:] for head in groups["B"]}
    groups["A"] = [head for head in groups["A"] if head[1:] not in heads_of_b]
    value = [
        {"group": group, "role": roles[group], "layer": layer, "head": head, "score": score}
        for group, heads in groups.items()
        for score, layer, head in heads
    ]
    settings = {"k": dict(k), "score_matrices": {group: matrix["name"] for group, matrix in scores.items()}}
    return entry("circuit/components", settings, ids, value)


def evaluated(
    evaluation: Evaluation, form: str, circuit: Sequence[Component], pruning_ids: Sequence[int], random: Sequence[Any]
) -> Iterator[Entry]:
    """All entries of a form of the answer; `random` are circuits without groups."""
    designs = {name: evaluation.naive.records[f"circuit/{name}"] for name in ("selection", "held_out")}

    def entries(kind: str, members: Sequence[Component] | None, **settings: Any) -> Iterator[Entry]:
        for name, records in designs.items():
            value: dict[str, Any] = evaluation.averages([*records.values()], form, members)
            if kind in ("full_model", "circuit"):
                value["per_prompt"] = evaluation.rows([*records.values()], form, members)
            yield entry(f"circuit/{form}/{kind}/{name}", {"design": f"circuit/{name}", **settings}, records, value)

    yield from entries("full_model", None)
    yield from entries("circuit", circuit)
    yield from entries("empty_circuit", ())
    for metric in ("mean_label_logit", "candidate_accuracy"):
        walk = pruned(evaluation, form, circuit, metric, pruning_ids)
        yield walk
        yield from entries(f"pruned_by_{metric}", walk["value"]["kept"], circuit=walk["value"]["kept"])
    records = designs["selection"]
    members = [[("random", *component) for component in components] for components in random]
    values = [
        {"components": components, **evaluation.averages([*records.values()], form, circuit)}
        for components, circuit in zip(random, members, strict=True)
    ]
    yield entry(f"circuit/{form}/random_circuits/selection", {"design": "circuit/selection"}, records, values)


def pruned(evaluation: Evaluation, form: str, circuit: Sequence[Component], metric: str, ids: Sequence[int]) -> Entry:
    """One walk through the list, front to back: a component goes if the measure falls by less than the threshold."""
    records = [evaluation.naive.records["circuit/selection"][number] for number in ids]
    remaining, trials = list(circuit), []
    before = first = evaluation.averages(records, form, remaining)[metric]
    for component in circuit:
        shorter = [member for member in remaining if member != component]
        score = evaluation.averages(records, form, shorter)[metric]
        drop = before - score
        if metric == "candidate_accuracy":
            drop = before / score - 1 if score else float("inf")
        removed = drop < THRESHOLD
        scores = {"score_before": before, "score_without": score, "drop": drop, "removed": removed}
        trials.append({"component": list(component), **scores})
        remaining, before = (shorter, score) if removed else (remaining, before)
    settings = {"design": "circuit/selection", "metric": metric, "threshold": THRESHOLD}
    removed_members = [list(component) for component in circuit if component not in remaining]
    value = {
        "initial_score": first,
        "kept": [list(member) for member in remaining],
        "removed": removed_members,
        "trials": trials,
    }
    return entry(f"circuit/{form}/pruning_by_{metric}", settings, ids, value)
