"""`--json`: what programs read says what the text says, and nothing else is printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rebinding.cli.commands import main
from rebinding.evidence.store import Store
from rebinding.planted import build, parse
from tests.report.folders import make, make_row
from tests.report.test_json_schemas import fits


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    """What a command prints, as JSON."""
    assert main(arguments) == code
    return json.loads(capsys.readouterr().out)


def test_planted(capsys: pytest.CaptureFixture[str]) -> None:
    content = printed(capsys, "planted", "pointer@gemma2", "--json")
    plant = build(parse("pointer@gemma2"))
    assert content["name"] == "planted:pointer@gemma2"
    assert [tuple(head.values()) for head in content["circuit"]] == [tuple(head) for head in plant.circuit]
    assert {row: truth["verdict"] for row, truth in content["truth"].items()} == {
        row: str(truth) for row, truth in plant.truth.items()
    }


def test_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    content = printed(capsys, "prompt", "--id", "3", "--json")
    original, counterfactual = content["original"], content["counterfactual"]
    assert len(original["ids"]) == len(counterfactual["ids"]) == original["roles"]["readout"] + 1
    assert original["answer"] != counterfactual["answer"]
    assert original["answer"] in original["text"]
    assert main(["prompt", "--model", "planted:pointer", "--answer", "--json"]) == 2
    assert "leave one of them out" in capsys.readouterr().err


def test_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = make(tmp_path / "a", [make_row()], bare=True)
    second = make(tmp_path / "b", [make_row(verdict="NOT REPLICATED")], bare=True)
    content = printed(capsys, "compare", str(first), str(second), "--json", code=1)
    (change,) = content["verdicts"]
    verdicts = [change[run]["verdict"] for run in ("first", "second")]
    assert (change["id"], verdicts) == ("binding.q_redirects", ["REPLICATED", "NOT REPLICATED"])
    assert printed(capsys, "compare", str(first), str(first), "--json")["verdicts"] == []


@pytest.mark.parametrize(("positions", "schema"), [("roles", "circuit"), ("all", "graph")])
def test_discover_and_store(positions: str, schema: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed circuit or graph is the saved one; the store says what the search left there."""
    store, saved = str(tmp_path / "store"), tmp_path / "saved.json"
    option = "--save" if positions == "roles" else "--graph"
    arguments = [
        "discover",
        "--model",
        "planted:pointer",
        "--positions",
        positions,
        "--samples",
        "12",
        "--store",
        store,
    ]
    content = printed(capsys, *arguments, "--json", option, str(saved))
    assert content == json.loads(saved.read_text("utf-8"))
    assert fits(schema, content)
    assert len(content["groups" if positions == "roles" else "nodes"]) >= 3
    listed = printed(capsys, "store", "list", "--store", store, "--json")["experiments"]
    entries = list(Store(Path(store)).entries())
    assert sum(entry["shards"] for entry in listed.values()) == len(entries) > 0
    assert sum(entry["bytes"] for entry in listed.values()) == sum(entry.bytes for entry in entries)
    assert printed(capsys, "store", "clear", "--store", store, "--json")["removed"] == len(entries)
