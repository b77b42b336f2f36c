"""Three claims about indirect objects (Wang et al., 2022), judged on any language model.

    pytest docs/tutorials/ioi-suite --model FOLDER_OR_HUB_ID --report report

"When Mary and John went to the store, John gave a book to" continues with "Mary". The published rows do what the paper
does; the controlled ones compare with random heads. Heads are found on other prompts than those on which they are
judged.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import torch

import rebinding
from rebinding import Edit, Model, Pairs, Read
from rebinding.testing import Claim, Study, Verdict, above_chance, effect, exceeds_random, require, row

NAMES = ["Mary", "John", "Tom", "Anna", "James", "Peter", "Sarah", "David", "Emma", "Jack", "Kate", "Paul", "Lucy",
         "Mark", "Laura", "Adam", "Alice", "Simon"]  # fmt: skip
TEMPLATE = "When {first} and {second} went to the {place}, {giver} gave a {thing} to"
FOUND_ON, DRAWS = 24, 20
SHARE = 0.05
"""A name mover takes this share of the lead along; a link of the circuit, two fifths of it."""
LEAST, LOOKS = 0.1, 0.1
"""Logits that count; the share of attention by which a name mover prefers the receiver."""
Heads = list[tuple[int, int]]
PAPER: dict[str, Any] = {
    "source": "Wang et al., 2022",
    "kind": "effect",
    "n": 64,
    "where": "readout; heads found on other prompts",
}
CONTROL = {"kind": "ordering", "unit": "nested", "statistic": "the same, less that of random heads"}


def make_pairs(model: Model, numbers: range) -> Pairs:
    """Prompts in both orders of the names; the noise prompts have three other names."""
    clean, noise = [], []
    for number in numbers:
        dice = random.Random(number)
        receiver, giver, *others = dice.sample(NAMES, 5)
        words = {"place": dice.choice(["store", "park", "school"]), "thing": dice.choice(["book", "ring", "ball"])}
        first, second = (receiver, giver) if number % 2 else (giver, receiver)
        words |= {"right": receiver, "wrong": giver}
        clean.append(words | {"first": first, "second": second, "giver": giver})
        noise.append(words | dict(zip(("first", "second", "giver"), others, strict=True)))
    answers = (" {right}", " {wrong}")
    return Pairs(*(model.fill(TEMPLATE, rows, answers=answers) for rows in (clean, noise)))


def lead(logits: torch.Tensor) -> np.ndarray:
    """The lead of the receiver over the giver: (..., prompt, name) to (..., prompt)."""
    return (logits[..., 0] - logits[..., 1]).double().cpu().numpy()


def find_movers(model: Model) -> Heads:
    """Heads that carry the lead to the logits and look at the receiver more than at the giver."""
    pairs = make_pairs(model, range(FOUND_ON))
    recording = model.record(pairs.clean)
    before = lead(recording.read(Read("answers"))[0]).mean()
    table = rebinding.patch_paths(model, pairs)
    heads = [
        (int(layer), int(head)) for layer, head in table.loc[table["score"] < -SHARE * before, ["layer", "head"]].values
    ]
    (patterns,) = recording.read(Read("pattern", head=heads, at="readout"))  # (prompt, head, key)
    every, odd = torch.arange(FOUND_ON), torch.arange(FOUND_ON) % 2 == 1
    receiver = torch.where(odd, pairs.clean.at("first"), pairs.clean.at("second"))
    looks = (patterns[every, :, receiver] - patterns[every, :, pairs.clean.at("giver")]).mean(0)  # (head)
    return [head for head, more in zip(heads, looks.tolist(), strict=True) if more > LOOKS]


def find_inhibitors(model: Model) -> Heads:
    """The three heads on which the queries of name movers depend most."""
    movers, options = find_movers(model), {"component": "q", "receivers_at": "readout"}
    if not movers:
        return []
    table = rebinding.patch_paths(model, make_pairs(model, range(FOUND_ON)), receivers=movers, **options)
    return [(int(layer), int(head)) for layer, head in table.head(3)[["layer", "head"]].values]


FINDERS = {"movers": find_movers, "inhibitors": find_inhibitors}


def falls(model: Model, group: str, n: int, attention: str) -> pd.DataFrame:
    """The fall of the lead with heads as in the noise prompt: those of a group, and random ones of the same layers."""
    heads = FINDERS[group](model)
    pairs = make_pairs(model, range(FOUND_ON, FOUND_ON + n))
    recording, noise = model.record(pairs.clean), model.record(pairs.noise)
    before, dice = lead(recording.read(Read("answers"))[0]), random.Random(0)
    if not heads:
        return tables(range(n), before, np.zeros((1 + DRAWS, n)))
    others = {at: [head for head in model.heads if head[0] == at and head not in heads] for at, _ in heads}
    draws = [[dice.choice(others[layer]) for layer, _ in heads] for _ in range(DRAWS)]
    sets = [[Edit("z", noise, at="readout", head=head) for head in dict.fromkeys(chosen)] for chosen in (heads, *draws)]
    (after,) = recording.run_each(sets, Read("answers"), attention=attention)  # (set, prompt, name)
    return tables(range(n), before, before - lead(after))


def circuit_alone(model: Model, n: int) -> pd.DataFrame:
    """The lead above half of the model's, with all heads but a circuit at their mean: of the one found by path patching
    at all tokens, and of random ones with as many heads at each of its tokens."""
    circuit = rebinding.discover(model, make_pairs(model, range(FOUND_ON)), positions="all", share=SHARE * 2 / 5)
    pairs = make_pairs(model, range(FOUND_ON, FOUND_ON + n))
    rows = rebinding.evaluate(model, circuit, pairs.clean, means=pairs.noise, draws=DRAWS, match="role").rows
    by_circuit = rows.pivot(index="circuit", columns="prompt", values="margin")
    before = by_circuit.loc["full model"].to_numpy()
    sets = ["circuit", *(f"random {number}" for number in range(DRAWS))]
    return tables(range(n), before, by_circuit.loc[sets].to_numpy() - before / 2)


def tables(prompts: range, before: np.ndarray, values: np.ndarray) -> pd.DataFrame:
    """A row for each set of heads (0 is the group itself) and prompt, with the lead of the unedited model."""
    lines = [
        pd.DataFrame({"prompt": prompts, "set": at, "before": before, "value": own}) for at, own in enumerate(values)
    ]
    return pd.concat(lines, ignore_index=True)


def judge(claim: Claim, table: pd.DataFrame) -> Verdict:
    """The group's own values, or these beside those of random heads; only if the model does the task."""
    values = table.pivot(index="set", columns="prompt", values="value").to_numpy()  # (set, prompt)
    require(above_chance((table.loc[table["set"] == 0, "before"] > 0).to_numpy(), chance=1 / 2))
    if claim.procedure == "published":
        return effect(values[0], margin=LEAST)
    return exceeds_random(values[0], values[1:], margin=LEAST)


@row("ioi.name_movers", "Name movers move the answer to the logits.", statistic="fall of the lead with their outputs of"
     " the noise prompt, all other heads frozen", controlled=CONTROL, **PAPER)  # fmt: skip
def test_name_movers(claim: Claim, study: Study) -> Verdict:
    return judge(claim, study.measure(claim, falls, group="movers", n=study.n(claim), attention="frozen"))


@row("ioi.s_inhibition", "Without the S-inhibition heads the answer's lead falls.", statistic="fall of the lead with"
     " their outputs of the noise prompt", controlled=CONTROL, **PAPER)  # fmt: skip
def test_s_inhibition(claim: Claim, study: Study) -> Verdict:
    return judge(claim, study.measure(claim, falls, group="inhibitors", n=study.n(claim), attention="live"))


@row("ioi.circuit", "A small circuit recovers the answer's lead.", statistic="the circuit's lead, all other heads at"
     " their mean over noise prompts, above half of the model's", controlled=CONTROL, **PAPER)  # fmt: skip
def test_circuit(claim: Claim, study: Study) -> Verdict:
    return judge(claim, study.measure(claim, circuit_alone, n=study.n(claim)))
