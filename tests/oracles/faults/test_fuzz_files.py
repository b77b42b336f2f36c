"""Fuzzed files are read correctly, or refused with an error of the package."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rebinding.evidence.evidence import KEY, Evidence, EvidenceError
from rebinding.evidence.shards import checksum_path
from rebinding.evidence.store import Note, Store, StoreWarning
from rebinding.experiments.search import graph
from rebinding.experiments.search.graph import Edge, Graph, Node
from rebinding.paper import circuit, procedure
from rebinding.paper.circuit import Circuit, CircuitError, CircuitHead, Owner
from rebinding.report.compare import ReportComparison
from rebinding.report.files import CLAIMS, ReportError
from rebinding.report.folder import read
from rebinding.report.page import html
from tests.oracles.faults.fuzz import cases, mutated, refused
from tests.report.folders import make, make_row

OWNER = Owner("planted:pointer@llama", "0123abcd", 6, 8)


HEADS = tuple(CircuitHead(group, 1, head, "readout") for head, group in enumerate("ABC"))
NODES = (Node(1, 2, "readout"), Node(0, 1, "swap_partner"))


def saved_content(save: Callable[[Path], None]) -> Any:
    """What one of our own writers puts into a JSON file."""
    with TemporaryDirectory() as folder:
        save(Path(folder) / "whole.json")
        return json.loads((Path(folder) / "whole.json").read_text())


CIRCUIT = saved_content(lambda path: circuit.save(Circuit(HEADS), OWNER, path))
EDGES = (Edge(NODES[1], NODES[0], "z", 1.0, 0.5, 1.5), Edge(NODES[0], None, "z", 1.0, 0.5, 1.5))
GRAPH = saved_content(lambda path: graph.save(Graph(NODES, EDGES, {}), OWNER, path))
NOTE = {"schema": 1, "experiment": "toy", "settings": {"n": 1}, "address": "toy/key"}
TOML = files("rebinding.paper").joinpath("procedures", "controlled.toml").read_text().splitlines()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def encode_content(content: Any) -> bytes:
    """As JSON, with numbers that no JSON has, and what is no text."""
    return json.dumps(content).encode("utf-8", "surrogatepass")


@cases("files")
@given(mutated(CIRCUIT), st.integers(0, 60))
def test_fuzzed_circuits_are_read_or_refused(folder: Path, content: Any, short: int) -> None:
    """A circuit whose heads exist, or an error; also where the file is cut short."""
    path = folder / "circuit.json"
    path.write_bytes(encode_content(content)[: -short if 0 < short < 30 else None])
    refused(lambda: circuit.load(path, OWNER).lines(), CircuitError)


@cases("files")
@given(mutated(GRAPH))
def test_fuzzed_graphs_are_read_or_refused(folder: Path, content: Any) -> None:
    """The same of what the search has found."""
    path = folder / "graph.json"
    path.write_bytes(encode_content(content))
    refused(lambda: graph.load(path, OWNER).lines(), CircuitError)


@cases("files")
@given(st.data())
def test_fuzzed_procedures_are_read_or_refused(folder: Path, data: st.DataObject) -> None:
    """A file with lines exchanged, missing, or of somebody else's."""
    lines = ['like = "controlled"', *TOML]
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        name = lines[at].partition("=")[0]
        wrong_type = st.sampled_from(
            ("[]", "nan", "inf", "-1", "''", "['x']", "{}", "[[1]]", "1979-05-27", "true", "9" * 5000)
        )
        new = st.lists(st.text(max_size=9) | wrong_type.map(lambda value, name=name: f"{name}= {value}"), max_size=2)
        lines[at : at + 1] = data.draw(new)
    path = folder / "mine.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    refused(lambda: procedure.read_procedure(path).plain)


@cases("files")
@given(mutated(NOTE), st.sampled_from((pa.array([1, 2]), pa.array(["a", None]), pa.array([[1], []]), pa.nulls(2))))
def test_fuzzed_evidence_is_read_or_refused(folder: Path, note: Any, column: pa.Array) -> None:
    """Parquet files that are whole, with any settings and columns; one made against its reader is that reader's."""
    path, content = folder / "toy" / "key.parquet", encode_content(note)
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table({"item": column}).replace_schema_metadata({KEY: content, b"pandas": content}), path)
    for attempt in (Evidence.load, Evidence.address):
        refused(lambda attempt=attempt: attempt(path), EvidenceError)


@cases("files")
@given(st.binary(max_size=40), st.binary(max_size=80), st.booleans())
def test_fuzzed_shards_are_computed_again(folder: Path, content: bytes, note: bytes, sealed: bool) -> None:
    """Any bytes in a shard and in the note beside it: computed again, with a warning, and then as it should be."""
    store = Store(folder / "store")
    path = store.path(Note, "toy", "key")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    checksum_path(path).write_bytes(hashlib.sha256(content).hexdigest().encode() if sealed else note)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StoreWarning)
        assert store.remember(Note, "toy", "key", lambda: Note("made once")) == Note("made once")
    assert store.get(Note, "toy", "key") == Note("made once")


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    """A report without its pictures' evidence."""
    return make(folder / "report", [make_row(), make_row("binding.k_redirects", "planted:global@llama")], bare=True)


REPORT = saved_content(
    lambda path: shutil.copy(make(path.parent / "r", [make_row(), make_row(model="b")], bare=True) / CLAIMS, path)
)


@cases("files")
@given(mutated(REPORT))
def test_fuzzed_claims_are_read_or_refused(folder: Path, report: Path, content: Any) -> None:
    """A `claims.json` that says anything: a run that can be held against another, or an error."""
    (report / CLAIMS).write_bytes(encode_content(content))

    def compared() -> None:
        run = read(report)
        list(ReportComparison(run, run).lines())

    refused(compared, ReportError)


@cases("pages")
@given(mutated(REPORT))
def test_fuzzed_claims_make_a_page_or_are_refused(report: Path, content: Any) -> None:
    """The same on the page, which what is read goes onto."""
    (report / CLAIMS).write_bytes(encode_content(content))
    refused(lambda: html(read(report)), ReportError)
