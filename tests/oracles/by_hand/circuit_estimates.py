"""What the rows of section 4.1 weigh, and those that ask more of a circuit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from rebinding.experiments.circuit.request import Ablation, Contributions, Knockout, Pruning, Stream
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.static.request import OtherStories
from tests.oracles.by_hand.binding_estimates import Estimates
from tests.oracles.by_hand.grounds import Grounds

PER_CENT = 0.01


def mean(rows: pd.DataFrame, which: str, measure: str) -> float:
    return float(rows[rows["which"] == which][measure].astype(float).mean())


def first(g: Grounds, rows: pd.DataFrame) -> pd.DataFrame:
    """The first prompts of an ablation: as many as the row is judged on."""
    return rows[rows["prompt"].isin(sorted(rows["prompt"].unique())[: g.judged.study.n(g.claim)])]


def ablated(g: Grounds) -> pd.DataFrame:
    return first(g, g.rows(Ablation))


def of(which: str, measure: str) -> Estimates:
    return lambda g: {"": mean(ablated(g), which, measure)}


def near(g: Grounds) -> Mapping[str, float]:
    return {"": mean(ablated(g), "circuit", "hit") / mean(ablated(g), "full", "hit")}


def most(g: Grounds) -> Mapping[str, float]:
    """What the circuit has over random ones, less half of what the full model has over these."""
    circuit, full, random = (mean(ablated(g), which, "hit") for which in ("circuit", "full", "random"))
    return {"": (circuit - random) - (full - random) / 2}


def beats(rows: pd.DataFrame, measure: str = "hit") -> float:
    return mean(rows, "circuit", measure) - mean(rows, "random", measure)


def floor(g: Grounds) -> Mapping[str, float]:
    rows = ablated(g)
    return {"over random circuits": beats(rows), "the model misses": 1 - mean(rows, "full", "hit")}


def printed(measure: str) -> Estimates:
    return lambda g: {"": mean(ablated(g), str(g.claim.condition), measure)}


def without_e(g: Grounds) -> Mapping[str, float]:
    rows = ablated(g)
    less = rows[(rows["which"] == "less") & (rows["group"] == "E") & (rows["layer"] < 0)]
    stream = g.rows(Stream)
    return {
        "answers without E": mean(rows, "circuit", "hit") if less.empty else float(less["hit"].mean()),
        "another stream": float((stream["before"] - stream["after"]).mean()),
    }


def left(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """What each walk leaves, the published order first."""
    return [one[~one["removed"].astype(bool)] for _, one in rows.groupby("order")]


def share(g: Grounds) -> Mapping[str, float]:
    """Of all heads, by what the discovery may have been; a head counts once at every token where it acts."""
    found = [rows for _, rows in g.all(Pruning)]
    counts = [[len(one[["layer", "head", "role"]].drop_duplicates()) for one in left(rows)] for rows in found]
    shares = [float(np.mean(some)) / g.judged.study.all_heads for some in counts]
    return by_discovery(g, shares)


def by_discovery(g: Grounds, values: list[float]) -> Mapping[str, float]:
    """In the order of what the discovery may have been, where that is more than one."""
    kinds = g.judged.study.conventions(g.claim).candidates
    return dict(zip(kinds, values, strict=True)) if len(kinds) > 1 else {"": values[0]}


def group_e(g: Grounds) -> Mapping[str, float]:
    """How many of the shuffled walks say what is stated of E."""
    empty = g.claim.condition == "empty"
    found = [[("E" not in set(one["group"])) == empty for one in left(rows)[1:]] for _, rows in g.all(Pruning)]
    return by_discovery(g, [float(np.mean(some)) for some in found])


def minimal(g: Grounds) -> Mapping[str, float]:
    _, rows = g.one(Ablation, beside="heads")
    whole, less = mean(rows, "circuit", "margin"), rows[rows["which"] == "less"].groupby(["group", "layer", "head"])
    return {f"{group} {at}.{head}": whole - one["margin"].mean() for (group, at, head), one in less}


def contributed(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(Contributions)
    worth = rows["before"] - (1 + PER_CENT) * rows["without"]
    by = [rows["group"], rows["layer"], rows["head"], rows["gone"]]
    means = {case: float(some.mean()) for case, some in worth.groupby(by)}
    return {f"{name} {at}.{head}: beside {gone}": found for (name, at, head, gone), found in means.items()}


def link(g: Grounds) -> Mapping[str, float]:
    """The mean fall of the answer's lead by the group's own heads: of each, or of all together."""
    rows = g.rows(Paths)
    heads = rows.groupby(["layer", "head"]).ngroups if g.claim.procedure == "controlled" else 1
    return {"": -(rows["lead_patch"] - rows["lead_orig"]).mean() * heads}


def fresh(g: Grounds) -> Mapping[str, float]:
    named = {"test": "test half", "evaluation": "evaluation third"}
    found = {}
    for asked, rows in g.all(Ablation):
        prompts = g.judged.case.session.prompts.encode(asked.prompts).prompts
        word = {number: one.prompt.answer for number, one in zip(asked.prompts.ids, prompts, strict=True)}
        each = [beats(some) for _, some in rows.groupby(rows["prompt"].map(word))]
        found[named[str(asked.prompts.split)]] = float(np.mean(each))
    return found


def more(g: Grounds) -> Mapping[str, float]:
    return {"a move" if one.prompts.verb == "move" else "two swaps": beats(rows) for one, rows in g.all(Ablation)}


def alone(g: Grounds) -> Mapping[str, float]:
    return {"": beats(g.rows(Ablation))}


def necessary(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(Knockout)
    return {"": mean(rows, "random", "hit") - mean(rows, "circuit", "hit")}


def elsewhere(g: Grounds) -> Mapping[str, float]:
    found = {}
    for asked, rows in g.all(OtherStories):
        where = "about a bystander" if asked.prompts.operations else "without a swap"
        found[f"{where}, margin"] = beats(rows, "margin")
        found[f"{where}, answers"] = mean(rows, "circuit", "hit")
    return found


def again(g: Grounds) -> Mapping[str, float]:
    """The share of the smaller of two groups that is in both, where ours are the k heads with the lowest scores."""
    group, conventions = str(g.claim.group), g.judged.study.conventions(g.claim)
    theirs, found = set(g.judged.study.circuit.group(group)), []
    for noise in conventions.noise if conventions.select != "sure" else ():
        asked = [one for one in g.all(Paths) if one[0].prompts.pairing[-1] == noise]
        stages = {one.stage.group: set(lowest(one, rows, conventions.select == "negative")) for one, rows in asked}
        taken = stages["B"] if group == "A" else set()
        ours = stages.get(group, set()) - taken  # without receivers a stage is not run
        least = min(len(ours), len(theirs))
        found.append(len(ours & theirs) / least if least else 0.0)
    return by_discovery(g, found) if found else {}


def lowest(request: Any, rows: pd.DataFrame, negative: bool) -> list[tuple[int, int]]:
    change = (rows["p_patch"] - rows["p_orig"]) / rows["p_orig"]
    means = change.groupby([rows["layer"], rows["head"]]).mean().sort_values(kind="stable")
    return list((means[means < -1e-3] if negative else means).index[: request.stage.top_k])


ROWS: Mapping[str, Estimates] = {
    "circuit.full_model_accuracy": of("full", "hit"),
    "circuit.recovers_accuracy": of("circuit", "hit"),
    "circuit.random_baseline": of("random", "hit"),
    "circuit.near_full": near,
    "circuit.recovers_most": most,
    "circuit.beats_random": lambda g: {"": beats(ablated(g))},
    "robust.counterbalanced_mean": lambda g: {"": beats(ablated(g))},
    "circuit.not_a_floor": floor,
    "circuit.margins": printed("margin"),
    "circuit.label_logits": printed("label_logit"),
    "circuit.e_prime": without_e,
    "circuit.compact": share,
    "circuit.three_to_ten_percent": share,
    "circuit.group_e_empty": group_e,
    "circuit.group_e_present": group_e,
    "circuit.minimal": minimal,
    "circuit.pruned_as_stated": contributed,
    "circuit.chain": link,
    "circuit.heads_found_again": again,
    "robust.fresh_prompts": fresh,
    "robust.more_operations": more,
    "beyond.many_boxes": alone,
    "beyond.narrative": alone,
    "beyond.necessary": necessary,
    "beyond.static_and_bystander": elsewhere,
}
