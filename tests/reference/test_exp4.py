"""Section 5 on the packs: directions, every condition with shared and with isolated keys, every read-out set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PUBLISHED_RANDOM, QK, K, Q
from rebinding.experiments.binding.directions import Directions, KeyKind, measure_directions, published_noise
from rebinding.experiments.binding.measure import run_binding
from rebinding.experiments.binding.summary import per_head, summary
from rebinding.experiments.random_draws import PUBLISHED_NOISE
from rebinding.paper.circuit import Head
from rebinding.surgery.sites import Scope
from tests.reference.pack import FORMS, Pack, deviation

NAME = "exp4"
CONDITIONS = {
    "query_shift": Q,
    "source_swap": K,
    "both_restore": QK,
    "random_query_shift": PUBLISHED_RANDOM[0],
    "random_source_swap": PUBLISHED_RANDOM[1],
    "random_both": PUBLISHED_RANDOM[2],
}
"""The pack's conditions, and ours."""

SCOPES: dict[str, Scope] = {"shared_keys": "group", "isolated_heads": "head"}


def key_kinds(entry: dict[str, Any]) -> tuple[KeyKind, ...]:
    return tuple(entry["settings"]["kinds"].split(","))


def read_heads(entry: dict[str, Any]) -> tuple[Head, ...]:
    return tuple((layer, head) for layer, head in entry["settings"]["heads"])


def key(head: Head) -> str:
    return f"{head[0]},{head[1]}"


def answer_tokens(pack: Pack, design: str, form: str) -> Callable[[str], int]:
    words = {word: token for record in pack.raw(design).values() for word, token in record[FORMS[form]].items()}
    return words.__getitem__


@cache
def directions(pack: Pack, heads: tuple[Head, ...]) -> Directions:
    prompts = {slot: pack.prompts(design) for slot, design in enumerate(direction_designs(pack))}
    return measure_directions(pack.surgeon, prompts, heads, block=3)


def direction_designs(pack: Pack) -> list[str]:
    """The designs whose prompts ask for the object of slot 0, 1, ..."""
    entry = pack.entries[find_names(pack, "/directions")[0]]
    return [f"qk_intervention/direction/slot{slot}" for slot in range(len(entry["value"]["muQ"]))]


@cache
def evidence(pack: Pack, name: str, form: str) -> Evidence:
    """One run for all conditions of a kind setting and a scope; `name` is any of its entries."""
    entry = pack.entries[name]
    settings, design = entry["settings"], entry["settings"]["evaluation"].removeprefix("design ")
    return run_binding(
        pack.surgeon,
        pack.prompts(design, entry["ids"]),
        directions(pack, read_heads(entry)),
        read_heads(entry),
        ids=entry["ids"],
        token=answer_tokens(pack, design, form),
        pairs=((settings["i"], settings["j"]),),
        conditions=[replace(condition, kinds=key_kinds(entry)) for condition in CONDITIONS.values()],
        scope=SCOPES[name.split("/")[2]],
        block=4,
    )


def find_names(pack: Pack, ending: str) -> list[str]:
    names = [name for name in pack.starting("qk_intervention/") if name.endswith(ending)]
    assert names
    return names


def test_every_entry_is_compared(pack: Pack) -> None:
    """A pack with conditions, scopes or kinds that these tests do not know is not silently half compared."""
    parts = [name.split("/")[1:] for name in pack.starting("qk_intervention/")]
    expected = {"directions", *SCOPES}
    assert {part[1] for part in parts} == expected
    assert {part[2] for part in parts if len(part) == 3} == {"no_intervention", *CONDITIONS}
    assert len(parts) == len({part[0] for part in parts}) * (1 + len(SCOPES) * (1 + len(CONDITIONS)))
    assert {entry["settings"]["alpha"] for entry in pack.starting("qk_intervention/").values()} == {1.0}


def test_means_equal_the_pack(pack: Pack, deviations: dict[str, float]) -> None:
    """Mean queries and keys per slot and head."""
    for name in find_names(pack, "/directions"):
        expected, heads, kinds = (
            pack.entries[name]["value"],
            read_heads(pack.entries[name]),
            key_kinds(pack.entries[name]),
        )
        actual = directions(pack, heads)
        for field, means in (("muQ", actual.q), ("muK", actual.mean_keys(kinds))):
            record(
                deviations, means, [[expected[field][str(n)][key(head)] for head in heads] for n in range(len(means))]
            )


def test_random_vectors(pack: Pack, deviations: dict[str, float]) -> None:
    """The published random vectors, with the norm of the real shifts."""
    for name in find_names(pack, "/directions"):
        entry, heads, kinds = pack.entries[name], read_heads(pack.entries[name]), key_kinds(pack.entries[name])
        actual = directions(pack, heads)
        i, j = (torch.tensor([entry["settings"][slot]]) for slot in "ij")
        real = {
            "random_query": ("q", actual.query_shift(i, j)[0]),
            "random_key_for_slot_j": ("k_at_j", actual.key_shift(j, i, kinds)[0]),
            "random_key_for_slot_i": ("k_at_i", actual.key_shift(i, j, kinds)[0]),
        }
        for field, (seed, shift) in real.items():
            noise = published_noise(heads, shift.shape[-1], PUBLISHED_NOISE[seed]) * shift.norm(dim=-1, keepdim=True)
            record(deviations, noise, [entry["value"][field][key(head)] for head in heads])


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_equal_the_pack(pack: Pack, scope: str, condition: str, deviations: dict[str, float]) -> None:
    """dR, dlogit and switch, and behind them every prompt's attention and logits, before and after."""
    for name in find_names(pack, f"/{scope}/{condition}"):
        entry = pack.entries[name]
        for form in entry["value"]["dlogit"]:
            compare(evidence(pack, name, form), entry, CONDITIONS[condition].name, form, deviations)


@pytest.mark.parametrize("scope", SCOPES)
def test_unedited_runs_equal_the_pack(pack: Pack, scope: str, deviations: dict[str, float]) -> None:
    """The attention and logits that every condition is compared with."""
    for name in find_names(pack, f"/{scope}/no_intervention"):
        entry = pack.entries[name]
        for form in entry["value"]["dlogit"]:
            compare_runs(evidence(pack, name, form), entry, Q.name, form, "before", deviations)


def compare(evidence: Evidence, entry: dict[str, Any], condition: str, form: str, deviations: dict[str, float]) -> None:
    compare_runs(evidence, entry, condition, form, "before", deviations)
    compare_runs(evidence, entry, condition, form, "after", deviations)
    table = summary(evidence, readout="tied").set_index("condition").loc[condition]
    record(deviations, table["dR"], entry["value"]["dR"])
    record(deviations, table["dlogit"], entry["value"]["dlogit"][form])
    pairs = len(entry["ids"]) * len(read_heads(entry))
    assert round(table["switch"] * pairs) == round(entry["value"]["switch"] * pairs)
    by_head = per_head(evidence, readout="tied")
    assert by_head[by_head["condition"] == condition]["switch"].sum() == round(entry["value"]["switch"] * pairs)


def compare_runs(
    evidence: Evidence, entry: dict[str, Any], condition: str, form: str, moment: str, deviations: dict[str, float]
) -> None:
    heads, prompts = read_heads(entry), entry["value"]["per_prompt"]
    assert [prompt["id"] for prompt in prompts] == entry["ids"]
    rows = evidence.rows[evidence.rows["condition"] == condition].set_index(["prompt", "layer", "head"])
    rows = rows.loc[[(number, *head) for number in entry["ids"] for head in heads]]
    slots = range(evidence.settings["slots"])
    mass = sum(rows[[f"{moment}_{kind}_{slot}" for slot in slots]].to_numpy() for kind in key_kinds(entry))
    record(deviations, mass, [prompt[f"M_{moment}"][key(head)] for prompt in prompts for head in heads])
    logits = rows[[f"{moment}_logit_{slot}" for slot in slots]].to_numpy()
    record(deviations, logits, [prompt[f"object_logits_{moment}"][form] for prompt in prompts for _ in heads])


def record(deviations: dict[str, float], actual: Any, expected: Any) -> None:
    distance = deviation(actual.numpy() if isinstance(actual, torch.Tensor) else actual, expected)
    deviations[NAME] = max(deviations.get(NAME, 0.0), distance)
    assert distance <= 1
