"""The naive code that the second pack is made with: it shares nothing with what it checks, and on the shown pack it
gives the numbers that were computed elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.reference.naive import binding, circuits, paths, roles, tracing
from tests.reference.naive.plain_model import Plain
from tests.reference.naive.prompts import MODES
from tests.reference.naive.runs import Entry, Naive
from tests.reference.pack import SAMPLE_PACK, Pack, deviation

PACK = Pack(SAMPLE_PACK)
FOLDER = Path(__file__).parent
SOURCES = [FOLDER / "make_pack.py", *sorted((FOLDER / "naive").glob("*.py"))]
PARTS = 4
"""A score of path patching is made of four numbers, each of which may be off."""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_nothing_that_runs_a_model_is_shared(source: Path) -> None:
    """Of the package only prompts; and of `tests` only what is held here, and tokenizers."""
    nodes = list(ast.walk(ast.parse(source.read_text("utf-8"))))
    modules = [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    actual = [module for module in modules if module.startswith(("rebinding", "tests"))]
    allowed = (
        "rebinding.task.",
        "tests.reference.naive",
        "tests.task.tokenizers",
    )
    assert [name for name in actual if not name.startswith(allowed)] == []


@cache
def naive() -> Naive:
    model = AutoModelForCausalLM.from_pretrained(SAMPLE_PACK / "model", dtype=torch.float32)
    return Naive(Plain(model), {design: PACK.raw(design) for design in PACK.designs})


def read_heads(entry: Entry, field: str = "heads") -> list[tuple[int, int]]:
    return [(layer, head) for layer, head in entry["settings"][field]]


def tracing_entries() -> Iterator[Entry]:
    remaining = PACK.entries["exp1/filter"]["value"]["kept_ids"]
    yield tracing.filtered(naive(), len(remaining))
    yield from tracing.traced(
        naive(), next(iter(MODES)), remaining
    )  # each takes as long as all of the other experiments


def path_entries() -> Iterator[Entry]:
    ids = PACK.entries["path_patching/p_orig"]["ids"]
    listing = {"B": "B_q", "C": "C_v/kv_group", "D": "D_q", "E": "E_v/kv_group"}
    receivers = {
        stage: read_heads(PACK.entries[f"path_patching/{name}"], "receivers") for stage, name in listing.items()
    }
    yield paths.clean_probabilities(naive(), ids)
    for name, settings in paths.stages(receivers):
        for frozen in (False, True):
            yield paths.patched(naive(), name, settings, ids, frozen)


def circuit_entries() -> Iterator[Entry]:
    selection, means = PACK.entries["circuit/components"], PACK.entries["circuit/mean_activation"]
    matrices = {group: PACK.entries[name] for group, name in selection["settings"]["score_matrices"].items()}
    selected = circuits.selected(matrices, selection["settings"]["k"], roles.SITES, selection["ids"])
    yield selected
    circuit = [(head["group"], head["role"], head["layer"], head["head"]) for head in selected["value"]]
    evaluation = circuits.Evaluation(naive(), [PACK.raw("circuit/selection")[number] for number in means["ids"]])
    for form in circuits.FORMS:
        random = PACK.entries[f"circuit/{form}/random_circuits/selection"]["value"]
        ids = PACK.entries[f"circuit/{form}/pruning_by_mean_label_logit"]["ids"]
        yield from circuits.evaluated(evaluation, form, circuit, ids, [row["components"] for row in random])


def role_entries() -> Iterator[Entry]:
    for name, entry in PACK.starting("head_roles/").items():
        _, group, kind = name.split("/")
        yield roles.exchanged(naive(), group, kind, read_heads(entry), entry["ids"])


def binding_entries() -> Iterator[Entry]:
    for kinds in ("box,object", "box", "object"):
        entry = PACK.entries[f"qk_intervention/{kinds}/directions"]
        settings = entry["settings"]
        yield from binding.shifted(naive(), read_heads(entry), kinds, settings["i"], settings["j"])


@pytest.mark.parametrize(
    ("recompute", "count"),
    [
        (role_entries, 10),
        (binding_entries, 45),
        pytest.param(circuit_entries, 27, marks=pytest.mark.slow),
        pytest.param(path_entries, 27, marks=pytest.mark.slow),
        pytest.param(tracing_entries, 4, marks=pytest.mark.slow),
    ],
)
def test_the_shown_packs_numbers(recompute: Callable[[], Iterator[Entry]], count: int) -> None:
    entries = {entry["name"]: entry for entry in recompute()}
    assert len(entries) == count
    for name, entry in entries.items():
        allowed = PARTS if name.startswith("path_patching") else 1
        assert largest_deviation(entry["value"], PACK.entries[name]["value"], name) <= allowed, name


def largest_deviation(actual: Any, expected: Any, name: str) -> float:
    """Over all numbers of the naive code but the distance of the closest tie; what is no number is equal."""
    if isinstance(actual, dict):
        assert set(actual) <= set(expected), name
        fields = [field for field in actual if not field.startswith("smallest_")]
        return max(largest_deviation(actual[field], expected[field], f"{name}/{field}") for field in fields)
    if isinstance(actual, list) and actual and not isinstance(actual[0], (int, float)):
        assert len(actual) == len(expected), name
        return max(largest_deviation(actual, expected, name) for actual, expected in zip(actual, expected, strict=True))
    if isinstance(actual, str | None) or actual == []:
        assert actual == expected, name
        return 0.0
    return deviation(actual, expected)
