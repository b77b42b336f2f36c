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

from tests.oracles.by_hand.plain_model import Plain
from tests.reference.naive import binding, circuits, paths, roles, tracing
from tests.reference.naive.prompts import MODES
from tests.reference.naive.runs import Entry, Naive
from tests.reference.pack import SHOWN, Pack, deviation

PACK = Pack(SHOWN)
HERE = Path(__file__).parent
PLAIN = HERE.parent / "oracles" / "by_hand" / "plain_model.py"
SOURCES = [HERE / "make_pack.py", PLAIN, *sorted((HERE / "naive").glob("*.py"))]
PARTS = 4
"""A score of path patching is made of four numbers, each of which may be off."""


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_nothing_that_runs_a_model_is_shared(source: Path) -> None:
    """Of the package only prompts; and of `tests` only what is held here, and tokenizers."""
    nodes = [node for node in ast.walk(ast.parse(source.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
    ours = [str(node.module) for node in nodes if str(node.module).startswith(("rebinding", "tests"))]
    allowed = (
        "rebinding.task.",
        "tests.reference.naive",
        "tests.oracles.by_hand.plain_model",
        "tests.task.tokenizers",
    )
    assert [name for name in ours if not name.startswith(allowed)] == []


@cache
def naive() -> Naive:
    model = AutoModelForCausalLM.from_pretrained(SHOWN / "model", dtype=torch.float32)
    return Naive(Plain(model), {design: PACK.raw(design) for design in PACK.designs})


def heads_of(entry: Entry, field: str = "heads") -> list[tuple[int, int]]:
    return [(layer, head) for layer, head in entry["settings"][field]]


def of_tracing() -> Iterator[Entry]:
    kept = PACK.entries["exp1/filter"]["value"]["kept_ids"]
    yield tracing.filtered(naive(), len(kept))
    yield from tracing.traced(naive(), next(iter(MODES)), kept)  # each takes as long as all of the other experiments


def of_paths() -> Iterator[Entry]:
    ids = PACK.entries["path_patching/p_orig"]["ids"]
    listed = {"B": "B_q", "C": "C_v/kv_group", "D": "D_q", "E": "E_v/kv_group"}
    receivers = {stage: heads_of(PACK.entries[f"path_patching/{name}"], "receivers") for stage, name in listed.items()}
    yield paths.clean_probabilities(naive(), ids)
    for name, settings in paths.stages(receivers):
        for frozen in (False, True):
            yield paths.patched(naive(), name, settings, ids, frozen)


def of_circuits() -> Iterator[Entry]:
    chosen, means = PACK.entries["circuit/components"], PACK.entries["circuit/mean_activation"]
    matrices = {group: PACK.entries[name] for group, name in chosen["settings"]["score_matrices"].items()}
    selected = circuits.selected(matrices, chosen["settings"]["k"], roles.SITES, chosen["ids"])
    yield selected
    circuit = [(head["group"], head["role"], head["layer"], head["head"]) for head in selected["value"]]
    evaluation = circuits.Evaluation(naive(), [PACK.raw("circuit/selection")[number] for number in means["ids"]])
    for form in circuits.FORMS:
        random = PACK.entries[f"circuit/{form}/random_circuits/selection"]["value"]
        ids = PACK.entries[f"circuit/{form}/pruning_by_mean_label_logit"]["ids"]
        yield from circuits.evaluated(evaluation, form, circuit, ids, [row["components"] for row in random])


def of_roles() -> Iterator[Entry]:
    for name, entry in PACK.starting("head_roles/").items():
        _, group, kind = name.split("/")
        yield roles.interchanged(naive(), group, kind, heads_of(entry), entry["ids"])


def of_binding() -> Iterator[Entry]:
    for kinds in ("box,object", "box", "object"):
        entry = PACK.entries[f"qk_intervention/{kinds}/directions"]
        settings = entry["settings"]
        yield from binding.shifted(naive(), heads_of(entry), kinds, settings["i"], settings["j"])


@pytest.mark.parametrize(
    ("recompute", "count"),
    [
        (of_roles, 10),
        (of_binding, 45),
        pytest.param(of_circuits, 27, marks=pytest.mark.slow),
        pytest.param(of_paths, 27, marks=pytest.mark.slow),
        pytest.param(of_tracing, 4, marks=pytest.mark.slow),
    ],
)
def test_the_shown_packs_numbers(recompute: Callable[[], Iterator[Entry]], count: int) -> None:
    entries = {entry["name"]: entry for entry in recompute()}
    assert len(entries) == count
    for name, entry in entries.items():
        allowed = PARTS if name.startswith("path_patching") else 1
        assert largest_deviation(entry["value"], PACK.entries[name]["value"], name) <= allowed, name


def largest_deviation(got: Any, want: Any, name: str) -> float:
    """Over all numbers of the naive code but the distance of the closest tie; what is no number is equal."""
    if isinstance(got, dict):
        assert set(got) <= set(want), name
        fields = [field for field in got if not field.startswith("smallest_")]
        return max(largest_deviation(got[field], want[field], f"{name}/{field}") for field in fields)
    if isinstance(got, list) and got and not isinstance(got[0], (int, float)):
        assert len(got) == len(want), name
        return max(largest_deviation(mine, theirs, name) for mine, theirs in zip(got, want, strict=True))
    if isinstance(got, str | None) or got == []:
        assert got == want, name
        return 0.0
    return deviation(got, want)
