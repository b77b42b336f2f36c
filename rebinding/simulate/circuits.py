"""Simulate the unedited model, the circuit experiments of section 4.1, and the interchanges of section 4.2.

The unedited model has answers with printed accuracy and margins, exact replays, and a declared noise floor.

In path patching every sender lowers the answer's lead, prompt by prompt.

In section 4.2 patching the attention pattern of a group affects three words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from torch import Tensor

from rebinding.experiments.ablation import UNPRUNED, VARIANT, Ablation, CircuitVariant
from rebinding.experiments.circuit.request import (
    Contributions,
    GroupKnockout,
    Pruning,
    Stream,
    contributions,
    removed_sets,
)
from rebinding.experiments.paths.request import Paths, write_stratum
from rebinding.experiments.prompts import Stories
from rebinding.experiments.roles.request import WHOLE_GROUP, WORDS, Interchange, RandomInterchange, RolePair
from rebinding.experiments.unedited import Ability, Floors, Replays
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.numbers import checkpoint, circuit
from rebinding.simulate.worlds import Run, World, world
from rebinding.verdicts.estimates import Array

NEARLY_ALL = 0.9975
"""The accuracy that stands for a printed 1.00: the middle of the values that round to it."""


def simulate_replays(prompts: Stories, request: Replays, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Every replay is the model's own forward."""
    rows = [
        {"prompt": number, "layer": 0, "token": 0, "difference": 0.0, "tolerance": 1.0}
        for number in request.prompts.ids
    ]
    return pd.DataFrame(rows), {}


def simulate_floors(prompts: Stories, request: Floors, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Null edits change every prompt by the noise floor."""
    floor = run.world.spreads["floor"]
    columns = {"company": "alone", "layer": -1, "token": -1, "logit": floor, "lead": floor}
    return pd.DataFrame([{"prompt": number, **columns} for number in request.prompts.ids]), {}


def simulate_ability(prompts: Stories, request: Ability, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt, of the full model. The rival's model can do the task as the printed one does: a world in which
    this gate fails says nothing of any rule."""
    ids = np.array(request.prompts.ids)
    if run.world.name == "rival":
        run = replace(run, world=world("paper", run.world.model))
    return pd.DataFrame({"prompt": ids, **draw_answers(run, "full", len(ids), request.prompts.tokens)}), {}


def draw_answers(
    run: Run, which: str, n: int, *what: Any, variant: tuple[Any, ...] = (), lift: float = 0.0
) -> dict[str, Array]:
    """The four measures of `n` answers. The margin over the best other object is normal; its mean and the share above 0
    are printed and give its spread. `lift` is added to every margin. Variants that differ in `which` or `variant` alone
    answer the same prompts."""
    world, dice = run.world, run.dice("answers", which, *what, *variant)
    of_prompt = run.correlate(dice.standard_normal(n), "answers", *what, is_opposed=which == "circuit")
    margin = world.mean(f"margin.{which}") + lift + margin_spread(world, which) * of_prompt
    logit = world.mean(f"logit.{which}") + world.spreads["logit"] * dice.standard_normal(n)
    return {
        "label_logit": logit,
        "margin": margin,
        "hit": (margin > 0).astype(float),
        "probability": probability(margin),
    }


def probability(margin: Array) -> Array:
    """The probability of an answer that leads two objects by a margin, if no other word has any."""
    result: Array = 1 / (1 + 2 * np.exp(-margin))
    return result


def margin_spread(world: World, which: str) -> float:
    """sd = mean / quantile(accuracy): 8.87 and 1.00 make 3.2, 0.84 and 0.71 make 1.5."""
    share = min(world.mean(f"accuracy.{which}"), NEARLY_ALL)
    return float(world.mean(f"margin.{which}") / stats.norm.ppf(share))


LOSS = 10
"""Each head carries a tenth of the circuit's margin, twice the step at which pruning keeps a head."""


def simulate_ablation(prompts: Stories, request: Ablation, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and circuit; circuits answer the same prompts with the world's correlation."""
    ids, key = np.array(request.prompts.ids), (request.prompts.tokens, request.match, request.means.prompts.design)
    frames = []
    for variant, which, lift in _variants(request, run):
        own = (variant if which == "random" else variant.variant,)
        lift += 0.0 if which == "full" else run.rounding("answers", which, *key, *own)
        values = draw_answers(run, which, len(ids), *key, variant=own, lift=lift)
        frames.append(pd.DataFrame({"prompt": ids, **dict(zip(VARIANT, variant, strict=True)), **values}))
    return pd.concat(frames, ignore_index=True), {}


def _variants(request: Ablation, run: Run) -> Iterator[tuple[CircuitVariant, str, float]]:
    """Each variant, the circuit whose printed numbers it has, and the difference of its margin from these.

    Without a group only chance remains; the paper says so of no group, and the row about it (E') is for models on which
    E is empty.
    """
    yield CircuitVariant("full"), "full", 0.0
    yield CircuitVariant("circuit"), "circuit", 0.0
    if request.comparison == "heads":
        lost = run.world.mean("margin.circuit") / LOSS
        yield from (
            (CircuitVariant("less", head.group, head.layer, head.head), "circuit", -lost) for head in request.circuit
        )
        return
    if request.comparison == "groups":
        groups = dict.fromkeys(head.group for head in request.circuit)
        yield from ((CircuitVariant("less", name), "random", 0.0) for name in groups)
    for size in ("", UNPRUNED) if request.unpruned else ("",):
        luck = run.world.spreads["draw"] * run.dice("draws", request.match, size).standard_normal(request.draws)
        # near the middle of a normal margin a share moves by 0.4 of a standard deviation
        lifts = luck / 0.4 * margin_spread(run.world, "random")
        yield from (
            (CircuitVariant("random", size, draw=number), "random", float(lift)) for number, lift in enumerate(lifts)
        )


def simulate_pruning(prompts: Stories, request: Pruning, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per order and head. A walk keeps the published heads, and errs about some heads by the luck of its order.
    In the rival's world nothing can be pruned, except that E keeps heads if the paper has none."""
    published = {(head.group, head.layer, head.head) for head in circuit(run.world.model)}
    groups = {group for group, _, _ in published}
    if run.world.name == "rival":
        needed = [head.group != "E" or "E" not in groups for head in request.circuit]
    else:
        needed = [(head.group, head.layer, head.head) in published for head in request.circuit]
    dice = run.dice("pruning", request.prompts.tokens, len(request.circuit))
    frames = []
    before, full = (run.world.mean(f"margin.{name}") for name in ("circuit", "full"))
    for order in range(request.orders):
        is_wrong = dice.random(len(needed)) < run.world.spreads["unstable"]
        is_kept = np.array(needed, dtype=bool) ^ is_wrong
        rows = pd.DataFrame([head._asdict() for head in request.circuit])
        frames.append(
            rows.assign(order=order, full_model=full, before=before, drop=is_kept.astype(float), removed=~is_kept)
        )
    return pd.concat(frames, ignore_index=True), {}


def simulate_stream(prompts: Stories, request: Stream, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt. Replacing the stream costs its share of the circuit's printed margin."""
    ids, world = np.array(request.prompts.ids), run.world
    before = draw_answers(run, "circuit", len(ids), request.prompts.tokens, "stream")["margin"]
    mean_drop = world.mean("stream") * world.mean("margin.circuit")
    drops = mean_drop + world.around(mean_drop) * run.dice("stream", request.prompts.tokens).standard_normal(len(ids))
    return pd.DataFrame({"prompt": ids, "before": before, "after": before - drops, "relative_change": 1.0}), {}


def simulate_contributions(prompts: Stories, request: Contributions, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per set, head and prompt. A circuit answers with its printed accuracy; each removed head costs a share of
    the right answers, as many as the world says, whichever other heads are removed."""
    full, world = Circuit(request.circuit), run.world
    n, share = len(request.prompts.ids), world.mean("contribution")
    answers = run.dice("contributions", request.prompts.design).random(n) < world.mean("accuracy.circuit")
    losses = {head: run.dice("contributions", *head).random(n) < share for head in full.heads}

    def hits(circuits: Sequence[Circuit]) -> Tensor:
        results = []
        for variant in circuits:
            missing = [losses[head] for head in set(full.heads) - set(variant.heads)]
            results.append(answers & ~np.any(missing, axis=0) if missing else answers)
        return torch.from_numpy(np.stack(results))  # (circuit, prompt)

    removed = removed_sets(full, request.random_sets)
    return contributions(full, hits, removed, request.prompts.ids), {}


def simulate_group_knockout(prompts: Stories, request: GroupKnockout, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and variant. The group acts in either world, as its gate demands: one that does nothing is no
    rival of any sentence. Without it as much of the margin is lost as the circuit has."""
    ids, world = np.array(request.prompts.ids), run.world
    dice, key = run.dice("idle", request.prompts.tokens), (request.prompts.tokens, "knockout")
    full, lost = draw_answers(run, "full", len(ids), *key)["margin"], abs(world.mean("margin.circuit"))
    changes = {CircuitVariant("full"): 0.0, CircuitVariant("circuit"): lost}
    changes |= {CircuitVariant("random", draw=draw): 0.0 for draw in range(request.draws)}
    share = lost / len(request.circuit)
    changes |= {CircuitVariant("less", head.group, head.layer, head.head): share for head in request.circuit}
    frames = []
    for variant, change in changes.items():
        noise = 0.0 if variant.variant == "full" else world.spreads["idle"] * dice.standard_normal(len(ids))
        margin = full - change + noise
        columns = {"margin": margin, "hit": (margin > 0).astype(float), "label_logit": margin, "probability": 0.0}
        frames.append(pd.DataFrame({"prompt": ids, **dict(zip(VARIANT, variant, strict=True)), **columns}))
    return pd.concat(frames, ignore_index=True).assign(relative_change=1.0), {}


def simulate_paths(prompts: Stories, request: Paths, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per prompt and sender. Heads of the published group lower the lead by their share of the circuit's logit;
    all others change it a little, up or down. In the rival's world, where all heads send, as many heads outside the
    published group have the effect instead."""
    shape = checkpoint(run.world.model)
    heads = [(layer, head) for layer in range(shape.layers) for head in range(shape.heads)]
    senders, ids = list(request.senders or heads), np.array(request.prompts.ids)
    fall = _falls(request, run, senders)
    key = request.stage.group, request.stage.component, request.prompts.tokens, request.settings.frozen
    dice, world = run.dice("paths", *key, len(senders)), run.world
    spreads = np.where(fall > 0, world.spreads["effect"] * fall, world.spreads["idle"])  # (head,)
    change = -fall + spreads * dice.standard_normal((len(ids), len(senders)))  # (prompt, head)
    lead = world.mean("margin.full") + margin_spread(world, "full") * run.dice("lead", *key).standard_normal(len(ids))
    before = np.repeat(lead, len(senders))
    after = before + change.ravel()
    layer, head = np.tile(np.array(senders), (len(ids), 1)).T
    strata = np.array([write_stratum(encoded.prompt) for encoded in prompts.encode(request.prompts).prompts])
    rows = {
        "prompt": np.repeat(ids, len(senders)),
        "stratum": np.repeat(strata, len(senders)),
        "layer": layer,
        "head": head,
        "relative_change": 1.0,
    }
    for name, value in (("orig", before), ("patch", after)):
        rows |= {f"logit_{name}": value, f"lead_{name}": value, f"p_{name}": probability(value)}
    return pd.DataFrame(rows), {"stage": {"top_k": request.stage.top_k}}


def _falls(request: Paths, run: Run, senders: Sequence[Head]) -> Array:
    """The drop that every sender causes, in logits."""
    world, dice = run.world, run.dice("others", request.stage.group)
    active = {(head.layer, head.head) for head in circuit(world.model) if head.group == request.stage.group}
    if world.name == "rival":
        others = [head for head in senders if head not in active]
        active = set() if request.senders else {others[n] for n in dice.choice(len(others), len(active), replace=False)}
    size = world.mean("paths.fall") * world.mean("logit.circuit")
    return np.array([size * (head in active) for head in senders])


JUDGED = {"pointer": ("pointer", "pointed_object"), "content_control": ("content", "new_object")}
"""For each kind of pairs, the name of its printed number and the word that it measures."""

UNSIMULATED: dict[str, Any] = {
    "layer": WHOLE_GROUP,
    "head": WHOLE_GROUP,
    "text": "",
    "token": 0,
    "before": 0.0,
    "counterfactual": 0.0,
    "future_mass": 0.0,
    "relative_change": 1.0,
}
"""Columns that no rule uses."""


def simulate_interchange(prompts: Stories, request: Interchange, run: Run) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per pair, group and word. The logit of the judged word changes by the group's mean, with a spread over ids
    that both directions of an id share; the other words do not change. Every head does an equal share of it."""
    name, judged = JUDGED[request.counterfactual]
    frames = []
    for group, heads in request.groups:
        mean = run.world.means.get(f"roles.{group}.{name}", 0.0)
        key = "roles", group, name, request.prompts.design
        whole = changes(prompts, request, run, key, mean, judged).assign(group=group)
        frames.append(whole)
        if request.single_heads:
            frames += [whole.assign(layer=at, head=head, after=whole["after"] / len(heads)) for at, head in heads]
    return pd.concat(frames, ignore_index=True), {"kind": request.counterfactual}


def simulate_random_interchange(
    prompts: Stories, request: RandomInterchange, run: Run
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A row per pair, draw and word. Random groups change nothing on average; the paper prints nothing of them."""
    _, judged = JUDGED[request.counterfactual]
    frames = []
    for draw in range(request.draws):
        key = "random groups", request.group, draw, request.prompts.design
        frames.append(changes(prompts, request, run, key, 0.0, judged).assign(draw=draw))
    return pd.concat(frames, ignore_index=True), {}


def changes(
    prompts: Stories, request: Interchange | RandomInterchange, run: Run, key: tuple[Any, ...], mean: float,
    judged: str,
) -> pd.DataFrame:  # fmt: skip
    """A row per pair and word: the judged word changes by the mean, with a spread over ids, part of which all groups
    may share."""
    pairs = [RolePair(*pair) for pair in prompts.encode(request.prompts).pairs]
    ids, slots = np.array([pair.id for pair in pairs]), np.array([pair.answer_slot for pair in pairs])
    unique_ids, place = np.unique(ids, return_inverse=True)
    own = run.dice(*key).standard_normal(len(unique_ids))
    of_id = run.correlate(own, "roles", request.prompts.design, is_opposed=key[:2] == ("roles", "B"))
    change = mean + run.rounding(*key) + run.world.around(mean) * of_id[place]
    frames = [
        pd.DataFrame({"prompt": ids, "answer_slot": slots, "word": word, "after": change if word == judged else 0.0})
        for word in WORDS
    ]
    return pd.concat(frames, ignore_index=True).assign(**UNSIMULATED)
