"""Who may import whom: the table of the house, held against the syntax tree."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.tree.syntax_trees import ROOT, imported, trees

TABLE: Mapping[str, tuple[str, ...]] = {
    "task": (),
    "surgery": (),
    "paper": ("task",),
    "evidence": ("paper",),
    "verdicts": ("paper",),
    "planted": ("task", "paper"),
    "learned": ("task", "paper"),
    "models": ("task", "surgery", "paper", "planted", "learned"),
    "experiments": ("task", "surgery", "paper", "evidence", "verdicts", "models"),
    "study": ("task", "surgery", "paper", "evidence", "verdicts", "experiments", "planted", "models"),
    "engines": ("task", "surgery", "evidence", "models", "experiments", "study"),
    # it lets gates pass, so it knows what they are called
    "cost": ("task", "surgery", "paper", "evidence", "verdicts", "experiments", "planted", "models", "study"),
    # it makes up what a study would be given, so it knows what the study knows, and what gates and verdicts are called
    "simulate": ("task", "surgery", "paper", "evidence", "verdicts", "experiments", "planted", "models", "study"),
    "report": ("evidence", "verdicts", "paper", "experiments"),
    "cli": (
        "task",
        "surgery",
        "paper",
        "evidence",
        "verdicts",
        "experiments",
        "planted",
        "learned",
        "models",
        "study",
        "engines",
        "cost",
        "simulate",
        "report",
    ),
}
"""A room, and the rooms that it may import besides itself."""
DRAWN_FROM = ("request", "seeds", "summary", "figure", "figures", "plots", "token_maps")
"""What the report reads of experiments: which columns there are, the numbers that sum evidence up, and figures."""
FROM_EVIDENCE = ("summary", "figures", "simulate")
"""Modules of a section that work on evidence alone."""
NO_TORCH = ("task", "paper", "verdicts")
"""Rooms that need no tensors. (Evidence has activations.)"""
SEEN = ("rebinding.paper", "rebinding.evidence", "rebinding.verdicts", "rebinding.study", "claims")
"""What a test of a claim may import; and the requests and summaries of experiments."""
HIDDEN = tuple(f"rebinding.study.{name}" for name in ("asked", "case", "plants", "settings"))
"""What it may not, though it lies there: how a model is loaded, and what was planted in it."""


def room(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "rebinding" and len(parts) > 1 else None


def modules(of: str) -> list[str]:
    return [name for name in trees() if room(name) == of]


def test_every_room_is_in_the_table() -> None:
    folders = {path.name for path in (ROOT / "rebinding").iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(TABLE)
    assert {name for name in trees() if room(name) and "." not in name.removeprefix("rebinding.")} <= {
        *(f"rebinding.{one}" for one in TABLE),
        "rebinding.__main__",
    }


@pytest.mark.parametrize("of", TABLE)
def test_a_room_imports_what_it_may(of: str) -> None:
    assert modules(of)
    wrong = [
        (name, one)
        for name in modules(of)
        for one in imported(name)
        if (other := room(one)) is not None and other != of and other not in TABLE[of]
    ]
    assert not wrong


def test_the_package_knows_neither_claims_nor_pytest() -> None:
    strange = ("claims", "fixtures", "tests", "pytest", "_pytest")
    inside = [name for name in trees() if name.startswith("rebinding")]
    assert not [(name, one) for name in inside for one in imported(name) if one.split(".")[0] in strange]


@pytest.mark.parametrize("of", NO_TORCH)
def test_rooms_without_tensors(of: str) -> None:
    assert not [(name, one) for name in modules(of) for one in imported(name) if one.split(".")[0] == "torch"]


def test_the_report_computes_nothing() -> None:
    """It reads what experiments say of their evidence, and nothing that runs a model."""
    asked = {one for name in modules("report") for one in imported(name) if room(one) == "experiments"}
    assert asked
    assert not {one for one in asked if one.rpartition(".")[2] not in ("experiments", *DRAWN_FROM)}


@pytest.mark.parametrize("module", FROM_EVIDENCE)
def test_what_works_on_evidence_runs_no_model(module: str) -> None:
    names = [name for name in modules("experiments") if name.endswith(f".{module}")]
    assert len(names) >= 5
    wrong = [
        (name, one)
        for name in names
        for one in imported(name)
        if one.endswith((".measure", ".workbench")) or room(one) in ("surgery", "models")
    ]
    assert not wrong


def seen(name: str) -> bool:
    """Whether a test of a claim may import it."""
    if not name.startswith(("rebinding", "fixtures", "claims")):
        return True
    return name.endswith((".summary", ".request")) or (name.startswith(SEEN) and not name.startswith(HIDDEN))


def test_claims_see_study_evidence_and_verdicts() -> None:
    claims = [name for name in trees() if name.startswith("claims.test_") and name != "claims.test_generator"]
    assert len(claims) >= 5
    assert not [(name, one) for name in claims for one in imported(name) if not seen(one)]
