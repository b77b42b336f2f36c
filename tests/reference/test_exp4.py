"""Section 5 on the packs: directions, every condition with shared and with isolated keys, every read-out set.

First with arguments of its own. Then, for the printed table, from a study's request, which takes answer tokens,
directions, conditions and read-outs as the procedure `published` says; prompts and heads are the pack's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PRINTED_ROW, PUBLISHED_RANDOM, QK, K, Q
from rebinding.experiments.binding.directions import Directions, KeyKind, measure_directions, published_noise
from rebinding.experiments.binding.measure import run_binding
from rebinding.experiments.binding.request import request_shifts
from rebinding.experiments.binding.summary import examples, per_head, summary
from rebinding.experiments.random_draws import PUBLISHED_NOISE
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.procedure import builtin_procedure
from rebinding.surgery.sites import Scope
from tests.reference.bench import choose_form, make_bench
from tests.reference.naive.patching import FORMS
from tests.reference.pack import Agrees, Pack

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

ROWS = {
    "q": "box,object/shared_keys/query_shift",
    "k_both": "box,object/shared_keys/source_swap",
    "k_box": "box/shared_keys/source_swap",
    "k_object": "object/shared_keys/source_swap",
    "qk": "box,object/shared_keys/both_restore",
    "random_q": "box,object/shared_keys/random_query_shift",
    "random_k": "box,object/shared_keys/random_source_swap",
    "random_qk": "box,object/shared_keys/random_both",
}
"""The rows of the printed table, and the pack's entries."""

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
def evidence(pack: Pack, kinds_and_scope: str, form: str) -> Evidence:
    """One run for all conditions of a kind setting and a scope, which are the beginning of their entries' names."""
    entry = pack.entries[f"{kinds_and_scope}/{next(iter(CONDITIONS))}"]
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
        scope=SCOPES[kinds_and_scope.split("/")[2]],
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


def test_means_equal_the_pack(pack: Pack, agrees: Agrees) -> None:
    """Mean queries and keys per slot and head."""
    for name in find_names(pack, "/directions"):
        expected, heads, kinds = (
            pack.entries[name]["value"],
            read_heads(pack.entries[name]),
            key_kinds(pack.entries[name]),
        )
        actual = directions(pack, heads)
        for field, means in (("muQ", actual.q), ("muK", actual.mean_keys(kinds))):
            agrees(
                NAME, means.numpy(), [[expected[field][str(n)][key(head)] for head in heads] for n in range(len(means))]
            )


def test_random_vectors_equal_the_pack(pack: Pack, agrees: Agrees) -> None:
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
            agrees(NAME, noise.numpy(), [entry["value"][field][key(head)] for head in heads])


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_equal_the_pack(pack: Pack, scope: str, condition: str, agrees: Agrees) -> None:
    """dR, dlogit and switch, and behind them every prompt's attention and logits, before and after."""
    for name in find_names(pack, f"/{scope}/{condition}"):
        entry = pack.entries[name]
        for form in entry["value"]["dlogit"]:
            compare(evidence(pack, name.rpartition("/")[0], form), entry, CONDITIONS[condition].name, form, agrees)


@pytest.mark.parametrize("scope", SCOPES)
def test_unedited_runs_equal_the_pack(pack: Pack, scope: str, agrees: Agrees) -> None:
    """The attention and logits that every condition is compared with."""
    for name in find_names(pack, f"/{scope}/no_intervention"):
        entry = pack.entries[name]
        for form in entry["value"]["dlogit"]:
            compare_runs(evidence(pack, name.rpartition("/")[0], form), entry, Q.name, form, "before", agrees)


def compare(evidence: Evidence, entry: dict[str, Any], condition: str, form: str, agrees: Agrees) -> None:
    compare_runs(evidence, entry, condition, form, "before", agrees)
    compare_runs(evidence, entry, condition, form, "after", agrees)
    table = summary(evidence, readout="tied").set_index("condition").loc[condition]
    agrees(NAME, table["dR"], entry["value"]["dR"])
    agrees(NAME, table["dlogit"], entry["value"]["dlogit"][form])
    pairs = len(entry["ids"]) * len(read_heads(entry))
    assert round(table["switch"] * pairs) == round(entry["value"]["switch"] * pairs)
    by_head = per_head(evidence, readout="tied")
    assert by_head[by_head["condition"] == condition]["switch"].sum() == round(entry["value"]["switch"] * pairs)


def compare_runs(
    evidence: Evidence, entry: dict[str, Any], condition: str, form: str, moment: str, agrees: Agrees
) -> None:
    heads, prompts = read_heads(entry), entry["value"]["per_prompt"]
    assert [prompt["id"] for prompt in prompts] == entry["ids"]
    rows = evidence.rows[evidence.rows["condition"] == condition].set_index(["prompt", "layer", "head"])
    rows = rows.loc[[(number, *head) for number in entry["ids"] for head in heads]]
    slots = range(evidence.settings["slots"])
    mass = sum(rows[[f"{moment}_{kind}_{slot}" for slot in slots]].to_numpy() for kind in key_kinds(entry))
    agrees(NAME, mass, [prompt[f"M_{moment}"][key(head)] for prompt in prompts for head in heads])
    logits = rows[[f"{moment}_logit_{slot}" for slot in slots]].to_numpy()
    agrees(NAME, logits, [prompt[f"object_logits_{moment}"][form] for prompt in prompts for _ in heads])


@cache
def measured(pack: Pack) -> tuple[Evidence, str]:
    """The published request on the pack's prompts, heads and pair of slots; and the pack's form of its answers."""
    entry, means = (pack.entries[f"qk_intervention/{name}"] for name in (ROWS["q"], "box,object/directions"))
    settings, conventions = entry["settings"], builtin_procedure("published").binding
    evaluation = settings["evaluation"].removeprefix("design ")
    slots = {("slot", str(slot)): ((design,), means["ids"]) for slot, design in enumerate(direction_designs(pack))}
    bench = make_bench(pack, {(): ((evaluation,), entry["ids"]), **slots})
    circuit = Circuit(tuple(CircuitHead("B", layer, head, "readout") for layer, head in read_heads(entry)))
    counts = {"n": len(entry["ids"]), "directions": len(means["ids"]), "draws": 1}
    request = request_shifts(bench.prompts, circuit, "published", "published", conventions, **counts)
    request = replace(request, slots=((settings["i"], settings["j"]),))  # the paper's pair, or another naming order's
    return bench.get(request), choose_form(pack, bench, evaluation, request.answers)


def test_every_row_of_the_table_is_compared(pack: Pack) -> None:
    """What the text says otherwise than the released code is run besides, and no pack has it."""
    conditions = set(measured(pack)[0].settings["conditions"]) - set(PRINTED_ROW)
    assert conditions == set(ROWS) >= {condition.name for condition in CONDITIONS.values()}


@pytest.mark.parametrize("row", ROWS)
def test_the_printed_table_is_the_packs(pack: Pack, row: str, agrees: Agrees) -> None:
    expected = pack.entries[f"qk_intervention/{ROWS[row]}"]["value"]
    evidence, form = measured(pack)
    table = examples(evidence)
    actual = table[table["condition"] == row][["dR", "dlogit", "switch"]].mean()
    agrees(NAME, actual["dR"], expected["dR"])
    agrees(NAME, actual["dlogit"], expected["dlogit"][form])
    assert actual["switch"] == pytest.approx(expected["switch"], abs=1e-9)  # both are counts over the same number
