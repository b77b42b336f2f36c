"""Estimates by hand of the rows of section 4.1, and of further rows about circuits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from rebinding.experiments.ablation import Ablation
from rebinding.experiments.circuit.request import Contributions, Knockout, Pruning, Stream
from rebinding.experiments.paths.request import Paths, random_senders
from rebinding.experiments.static import UnswappedQuestions
from tests.oracles.by_hand.grounds import Estimates, Grounds

PER_CENT = 0.01


def mean(rows: pd.DataFrame, variant: str, measure: str) -> float:
    return float(rows[rows["variant"] == variant][measure].astype(float).mean())


def first(g: Grounds, rows: pd.DataFrame) -> pd.DataFrame:
    """The first prompts of an ablation: as many as the row is judged on."""
    return rows[rows["prompt"].isin(sorted(rows["prompt"].unique())[: g.judged.study.n(g.claim)])]


def ablated(g: Grounds) -> pd.DataFrame:
    return first(g, g.rows(Ablation))


def estimate_mean(variant: str, measure: str) -> Estimates:
    return lambda g: {"": mean(ablated(g), variant, measure)}


def estimate_distance_to_full(g: Grounds) -> Mapping[str, float]:
    return {"": mean(ablated(g), "circuit", "hit") - 0.75 * mean(ablated(g), "full", "hit")}


def estimate_distance_recovered(g: Grounds) -> Mapping[str, float]:
    """What the circuit has over random ones, less half of what the full model has over these."""
    circuit, full, random = (mean(ablated(g), variant, "hit") for variant in ("circuit", "full", "random"))
    return {"": (circuit - random) - (full - random) / 2}


def beats(rows: pd.DataFrame, measure: str = "hit") -> float:
    return mean(rows, "circuit", measure) - mean(rows, "random", measure)


def floor(g: Grounds) -> Mapping[str, float]:
    rows = ablated(g)
    return {"over random circuits": beats(rows), "the model misses": 1 - mean(rows, "full", "hit")}


def printed(measure: str) -> Estimates:
    return lambda g: {"": mean(ablated(g), str(g.claim.condition), measure)}


def estimate_without_e(g: Grounds) -> Mapping[str, float]:
    rows = ablated(g)
    reduced = rows[(rows["variant"] == "less") & (rows["group"] == "E") & (rows["layer"] < 0)]
    stream = g.rows(Stream)
    return {
        "answers without E": mean(rows, "circuit", "hit") if reduced.empty else float(reduced["hit"].mean()),
        "another stream": float((stream["before"] - stream["after"]).mean()),
    }


def split_walks(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """What each walk leaves, the published order first."""
    return [walk[~walk["removed"].astype(bool)] for _, walk in rows.groupby("order")]


def share(g: Grounds) -> Mapping[str, float]:
    """Of all heads, by what the discovery may have been; a head counts once at every token where it acts."""
    tables = [rows for _, rows in g.all(Pruning)]
    counts = [
        [len(table[["layer", "head", "role"]].drop_duplicates()) for table in split_walks(rows)] for rows in tables
    ]
    shares = [float(np.mean(count)) / len(g.judged.study.heads) for count in counts]
    return name_by_discovery(g, shares)


def name_by_discovery(g: Grounds, values: list[float]) -> Mapping[str, float]:
    """In the order of what the discovery may have been, where that is more than one."""
    kinds = g.judged.study.conventions(g.claim).candidates
    return dict(zip(kinds, values, strict=True)) if len(kinds) > 1 else {"": values[0]}


def group_e(g: Grounds) -> Mapping[str, float]:
    """How many of the shuffled walks say what is stated of E."""
    empty = g.claim.condition == "empty"
    matches = [
        [("E" not in set(table["group"])) == empty for table in split_walks(rows)[1:]] for _, rows in g.all(Pruning)
    ]
    return name_by_discovery(g, [float(np.mean(flags)) for flags in matches])


def minimal(g: Grounds) -> Mapping[str, float]:
    _, rows = g.single(Ablation, comparison="heads")
    full, reduced = mean(rows, "circuit", "margin"), rows[rows["variant"] == "less"].groupby(["group", "layer", "head"])
    return {f"{group} {at}.{head}": full - part["margin"].mean() for (group, at, head), part in reduced}


def contributed(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(Contributions)
    contributions = rows["before"] - (1 + PER_CENT) * rows["without"]
    keys = [rows["group"], rows["layer"], rows["head"], rows["removed_set"]]
    means = {case: float(values.mean()) for case, values in contributions.groupby(keys)}
    return {
        f"{name} {at}.{head}: with {removed_set} removed": value
        for (name, at, head, removed_set), value in means.items()
    }


def link(g: Grounds) -> Mapping[str, float]:
    """The mean fall of the answer's lead by the group's own heads, and the same less that by random ones: of each, or
    of all together."""
    rows, circuit, group = g.rows(Paths), g.judged.study.circuit, str(g.claim.group)
    falls = (rows["lead_orig"] - rows["lead_patch"]).groupby([rows["layer"], rows["head"]]).mean()
    heads, others = circuit.group(group), random_senders(circuit.groups[group], g.judged.study.heads)
    times = 1 if g.claim.procedure == "published" else len(heads)
    own, random = (times * np.mean([falls[head] for head in chosen]) for chosen in (heads, sum(others, ())))
    return {"the lead falls": own, "more than with random senders": own - random}


def fresh(g: Grounds) -> Mapping[str, float]:
    names = {"test": "test half", "evaluation": "evaluation third"}
    accuracies = {}
    for request, rows in g.all(Ablation):
        prompts = g.judged.case.session.prompts.encode(request.prompts).prompts
        word = {number: prompt.prompt.answer for number, prompt in zip(request.prompts.ids, prompts, strict=True)}
        by_word = [beats(part) for _, part in rows.groupby(rows["prompt"].map(word))]
        accuracies[names[str(request.prompts.split)]] = float(np.mean(by_word))
    return accuracies


def estimate_operations(g: Grounds) -> Mapping[str, float]:
    return {
        "a move" if request.prompts.verb == "move" else "two swaps": beats(rows) for request, rows in g.all(Ablation)
    }


def estimate_circuit_alone(g: Grounds) -> Mapping[str, float]:
    return {"": beats(g.rows(Ablation))}


def necessary(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(Knockout)
    return {"": mean(rows, "random", "hit") - mean(rows, "circuit", "hit")}


def estimate_other_stories(g: Grounds) -> Mapping[str, float]:
    estimates = {}
    for request, rows in g.all(UnswappedQuestions):
        name = "about a bystander" if request.prompts.operations else "without a swap"
        estimates[f"{name}, margin"] = beats(rows, "margin")
        estimates[f"{name}, answers"] = mean(rows, "circuit", "hit")
    return estimates


def estimate_overlap(g: Grounds) -> Mapping[str, float]:
    """The share of the smaller of two groups that is in both, where ours are the k heads with the lowest scores."""
    group, conventions = str(g.claim.group), g.judged.study.conventions(g.claim)
    published, overlaps = set(g.judged.study.circuit.group(group)), []
    for noise in conventions.noise if conventions.select != "sure" else ():
        requests = [pair for pair in g.all(Paths) if pair[0].prompts.pairing[-1] == noise]
        stages = {
            request.stage.group: set(lowest(request, rows, conventions.select == "negative"))
            for request, rows in requests
        }
        used_heads = stages["B"] if group == "A" else set()
        selected = stages.get(group, set()) - used_heads  # without receivers a stage is not run
        smaller = min(len(selected), len(published))
        overlaps.append(len(selected & published) / smaller if smaller else 0.0)
    return name_by_discovery(g, overlaps) if overlaps else {}


def lowest(request: Any, rows: pd.DataFrame, negative: bool) -> list[tuple[int, int]]:
    change = (rows["p_patch"] - rows["p_orig"]) / rows["p_orig"]
    means = change.groupby([rows["layer"], rows["head"]]).mean().sort_values(kind="stable")
    return list((means[means < -1e-3] if negative else means).index[: request.stage.top_k])


ROWS: Mapping[str, Estimates] = {
    "circuit.full_model_accuracy": estimate_mean("full", "hit"),
    "circuit.recovers_accuracy": estimate_mean("circuit", "hit"),
    "circuit.random_baseline": estimate_mean("random", "hit"),
    "circuit.near_full": estimate_distance_to_full,
    "circuit.recovers_most": estimate_distance_recovered,
    "circuit.beats_random": lambda g: {"": beats(ablated(g))},
    "robust.counterbalanced_mean": lambda g: {"": beats(ablated(g))},
    "circuit.not_a_floor": floor,
    "circuit.margins": printed("margin"),
    "circuit.label_logits": printed("label_logit"),
    "circuit.e_prime": estimate_without_e,
    "circuit.compact": share,
    "circuit.three_to_ten_percent": share,
    "circuit.group_e_empty": group_e,
    "circuit.group_e_present": group_e,
    "circuit.minimal": minimal,
    "circuit.pruned_as_stated": contributed,
    "circuit.chain": link,
    "circuit.heads_found_again": estimate_overlap,
    "robust.fresh_prompts": fresh,
    "robust.more_operations": estimate_operations,
    "beyond.many_boxes": estimate_circuit_alone,
    "beyond.narrative": estimate_circuit_alone,
    "beyond.necessary": necessary,
    "beyond.static_and_bystander": estimate_other_stories,
}
