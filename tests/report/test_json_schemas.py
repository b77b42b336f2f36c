"""The published JSON Schemas: what the project writes fits them, and what they refuse is refused when it is read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from rebinding.experiments.search import graph as graphs
from rebinding.paper import circuit as circuits
from rebinding.paper.circuit import Circuit, CircuitError, Owner
from rebinding.report.files import ReportError, parse
from tests.report.folders import make, make_row
from tests.report.schemas import FOLDER, text

OWNER = Owner("planted:pointer", "0" * 64, 7, 8)
SHIPPED = sorted((FOLDER.parent / "learned" / "adapters").glob("*/graph.json"))


def schema(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(content)
    return content


def fits(name: str, content: Any) -> bool:
    return jsonschema.Draft202012Validator(schema(name)).is_valid(content)


def changed(content: Any, change: Callable[[Any], Any]) -> Any:
    """A copy with one change."""
    own = copy.deepcopy(content)
    change(own)
    return own


@pytest.fixture
def claims(tmp_path: Path) -> Path:
    return (
        make(tmp_path / "report", [make_row(), make_row("circuit.compact", headline=1, sentence="circuit.compact")])
        / "claims.json"
    )


@pytest.mark.parametrize("name", ["claims", "certificate"])
def test_a_schema_is_that_of_the_checks(name: str) -> None:
    """Descriptions apart: older versions of pydantic leave out those of dataclasses."""
    expected = without_descriptions(json.loads(text(name)))
    assert without_descriptions(schema(name)) == expected, "write it anew: python -m tests.report.schemas"


def without_descriptions(content: Any) -> Any:
    """A schema without the descriptions of its classes."""
    if isinstance(content, list):
        return [without_descriptions(part) for part in content]
    if not isinstance(content, dict):
        return content
    return {key: without_descriptions(part) for key, part in content.items() if not _is_description(key, part)}


def _is_description(key: str, part: Any) -> bool:
    return key == "description" and isinstance(part, str)


def test_written_claims_fit(claims: Path) -> None:
    content = json.loads(claims.read_text("utf-8"))
    assert content["headline"]
    assert fits("claims", content)
    for change in (
        lambda own: own.pop("claims"),
        lambda own: own["claims"][0].update(verdict=3),
        lambda own: own["claims"][0].pop("model"),
        lambda own: own["headline"][0]["claims"][0].pop("title"),
        lambda own: own.update(schema=1),
    ):
        broken = changed(content, change)
        assert not fits("claims", broken)
        claims.write_text(json.dumps(broken), "utf-8")
        with pytest.raises(ReportError):
            parse(claims)


def test_written_circuits_fit(tmp_path: Path) -> None:
    path = tmp_path / "circuit.json"
    circuits.save(Circuit.of({"readout": [(6, 3), (5, 5)], "question_box": [(3, 3)]}), OWNER, path)
    content = json.loads(path.read_text("utf-8"))
    assert fits("circuit", content)
    for change in (
        lambda own: own.pop("groups"),
        lambda own: own.update(schema=2),
        lambda own: own.update(order=["head", "layer"]),
        lambda own: own["groups"]["readout"].pop("role"),
        lambda own: own["groups"]["readout"].update(heads=[[6]]),
        lambda own: own["groups"]["readout"].update(heads=[["six", 3]]),
    ):
        broken = changed(content, change)
        assert not fits("circuit", broken)
        path.write_text(json.dumps(broken), "utf-8")
        with pytest.raises(CircuitError):
            circuits.load(path, OWNER)


def test_written_graphs_fit(tmp_path: Path) -> None:
    assert SHIPPED
    for path in SHIPPED:
        content = json.loads(path.read_text("utf-8"))
        assert fits("graph", content), path
        assert not fits("graph", changed(content, lambda own: own["nodes"][0].pop("token")))
    graph = graphs.of_plain(json.loads(SHIPPED[0].read_text("utf-8")))
    graphs.save(graph, OWNER, tmp_path / "graph.json")
    assert fits("graph", json.loads((tmp_path / "graph.json").read_text("utf-8")))
