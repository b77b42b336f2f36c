"""Fuzzed names, options and files are understood, or refused with an error of this project.

Every day a hundred cases of each, the same in every run; `HYPOTHESIS_PROFILE=nightly` a million, drawn anew.
"""

from __future__ import annotations

import json
import linecache
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures.options import _check_circuit, _check_dtype, settings_of
from rebinding.cli.options import readable
from rebinding.evidence.evidence import KEY, Evidence, EvidenceError
from rebinding.experiments.search import graph
from rebinding.experiments.search.graph import Edge, Graph, Node
from rebinding.learned.shelf import parse as parse_learned
from rebinding.models import ALIASES
from rebinding.models.devices import DTYPES
from rebinding.paper import circuit, procedure
from rebinding.paper.circuit import Circuit, CircuitError, CircuitHead, Owner
from rebinding.planted import ARCHITECTURES, MECHANISMS, VARIANTS
from rebinding.report.compare import ReportComparison
from rebinding.report.files import CLAIMS, ReportError
from rebinding.report.folder import read
from rebinding.report.page import html
from rebinding.study.model_spec import parse_model
from rebinding.study.options import Options
from tests.report.folders import make, make_row

NIGHTLY = {"names": 160_000, "options": 135_000, "files": 130_000, "models": 54_000, "pages": 6_000}
"""Cases of a property of each sort, by how long one takes: a million in all, since five properties are of files."""


def cases(sort: str) -> settings:
    """How many cases a property tries; a page takes a while to make."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
        unhurried = [HealthCheck.too_slow, HealthCheck.data_too_large]
        return settings(max_examples=NIGHTLY[sort], deadline=None, derandomize=False, suppress_health_check=unhurried)
    return settings(max_examples=20 if sort == "pages" else 100, deadline=None, derandomize=True, database=None)


def refused(attempt: Callable[[], Any], *kinds: type[Exception]) -> str | None:
    """Why an attempt was refused, or None. Whatever is no error of ours is not caught."""
    try:
        attempt()
    except pytest.UsageError as error:
        return str(error)
    except ValueError as error:
        if not (isinstance(error, kinds) if kinds else is_package_error(error)):
            raise
        return str(error)
    return None


def is_package_error(error: Exception) -> bool:
    """Whether an error is of a class of this project, or was raised by a line of it that says so."""
    if type(error).__module__.startswith("rebinding."):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or "rebinding" not in trace.tb_frame.f_globals.get("__name__", ""):
        return False
    return linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip().startswith("raise ")


def test_only_errors_of_this_project_count_as_refusals() -> None:
    assert refused(lambda: parse_model("planted:pointer")) is None
    assert "unknown model" in str(refused(lambda: parse_model("pointer")))
    for attempt in (lambda: int("x"), lambda: {}["x"], lambda: Path("/nowhere").read_text()):
        with pytest.raises((ValueError, LookupError, OSError)):
            refused(attempt)


def typed(*alphabet: str) -> st.SearchStrategy[str]:
    """What somebody may type: pieces that mean something, in any order, among anything that a terminal can send."""
    any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=8)
    pieces = st.lists(st.one_of(st.sampled_from(alphabet), any_text), max_size=9)
    return pieces.map("".join)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
"""Any JSON, with the numbers that are none."""


def places(content: Any) -> list[tuple[Any, ...]]:
    """The way to everything inside some JSON, the whole first."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [(), *((key, *way) for key, value in inner for way in places(value))]


@st.composite
def mutated(draw: st.DrawFn, content: Any) -> Any:
    """The JSON with one to three of its parts exchanged, missing, or there under another name."""
    part = content
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(places(part)))
        part = _changed(part, way, draw(st.sampled_from(("exchanged", "missing", "renamed"))), draw(PLAIN))
    return part


def _changed(content: Any, way: Sequence[Any], kind: str, value: Any) -> Any:
    """A copy with another value at a place."""
    if not way:
        return value
    first, rest = way[0], way[1:]
    if isinstance(content, list):
        inner = [] if kind == "missing" and not rest else [_changed(content[first], rest, kind, value)]
        return [*content[:first], *inner, *content[first + 1 :]]
    if rest or kind == "exchanged":
        return {**content, first: _changed(content[first], rest, kind, value)}
    remaining = {name: item for name, item in content.items() if name != first}
    return remaining if kind == "missing" else {**remaining, str(value): content[first]}


CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "dtype": "float32", "text_config": {"num_hidden_layers": 2}}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which names are read. It has a model's folder and a file."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("fuzz")
    (folder / "here").mkdir()
    (folder / "here" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "file").write_text("x")
    os.chdir(folder)
    yield folder
    os.chdir(before)


PREFIXES = ("planted:", "shape:", "learned:", "gemma2-9b=", "")
BASES = (*MECHANISMS, *ALIASES, "smollm2", "here", "owner/m", "~no-such-user", "x" * 300)
AFTER = ("", *(f"+{name}" for name in VARIANTS), *(f"@{name}" for name in ARCHITECTURES), ".gguf", "/", "@main")
OPTION = st.builds(
    "{}={}".format,
    st.sampled_from(("boxes", "softness", "decoys", "seed", "order")),
    st.sampled_from(("3", "3.5", "0", "1", "²", "٣", "1e9", "-1", "all", "9" * 5000))
    | st.text("0123456789.", max_size=4),
)
SPECIFIED = st.builds(
    "{}{}?{}".format,
    st.sampled_from(("planted:pointer", "planted:global", "learned:smollm2")),
    st.sampled_from(("", "@gemma2")),
    st.lists(OPTION, min_size=1, max_size=2).map("&".join),
)
PUT_TOGETHER = st.builds("{}{}{}".format, *map(st.sampled_from, (PREFIXES, BASES, AFTER)))
NAMES = SPECIFIED | PUT_TOGETHER | typed(*PREFIXES, *BASES, *AFTER, "?", "&", "=", "./", "~", "..", "boxes=3")


@cases("names")
@given(NAMES)
def test_fuzzed_names_are_loaded_or_refused(name: str) -> None:
    """A name, a specification, an adapter; and what a terminal is told steers nothing."""
    for parse in (parse_model, parse_learned, lambda name: parse_model(name).fixed_dtype):
        why = refused(partial(parse, name))
        assert why is None or readable(why).replace("\n", "").isprintable()


NO_OTHER: Any = type(None)
"""No error but those of pytest."""
PATHS = st.none() | typed("here", "file", "/", "..", "~", "x" * 300, "here/config.json", "out")
TYPED: Mapping[str, st.SearchStrategy[Any]] = {
    "model": st.lists(NAMES, max_size=2),
    "skip_prompts": st.just(0) | st.integers(),
    "procedure": st.sampled_from(("both", "published")) | typed("file", "here", "controlled", "published"),
    "circuit": st.none() | typed("published", "discovered", "-all-positions", "file", "here"),
    "device": typed("auto", "cpu", "cuda", ":", "0", "99999999999999999999", "mps", "meta"),
    "store": PATHS,
    "report": PATHS,
    "address": st.none() | typed("auto", "localhost", ":", "6379"),
    "simulate": st.lists(st.sampled_from(("paper", "rival")), max_size=2),
    "gpu": typed("80GB", "0GB", "nan", "inf", "-1GB", "1e400"),
}
"""Options whose text means something; any value of its type is tried of all others."""
OPTIONS = st.fixed_dictionaries(
    {name: TYPED.get(name, st.from_type(kind)) for name, kind in get_type_hints(Options).items()}
)


@cases("options")
@given(OPTIONS)
def test_fuzzed_options_are_read_or_refused(options: dict[str, Any]) -> None:
    """Read and checked, or a usage error; each option alone as well, since one that is wrong hides the others."""
    plain: dict[str, Any] = {"model": ["planted:pointer"], "device": "cpu"}
    for values in (options, *({**plain, name: value} for name, value in options.items())):
        refused(partial(settings_of, Options(**values), marks="not gpu", processes=None), NO_OTHER)


@cases("models")
@given(st.none() | mutated(CONFIG), st.sampled_from(("", "gemma2-9b=", "llama3.1-8b=")))
def test_fuzzed_configurations_are_read_or_refused(folder: Path, config: Any, alias: str) -> None:
    """A folder whose configuration says anything, or is missing, as options look at it."""
    path = folder / "here" / "config.json"
    path.unlink(missing_ok=True)
    if config is not None:
        path.write_text(json.dumps(config))

    def load_name() -> None:
        models = (parse_model(f"{alias}./here"),)
        assert models[0].dtype in DTYPES
        _check_dtype("float16", models)
        _check_circuit("published", models)

    refused(load_name)


def saved_content(save: Callable[[Path], object]) -> Any:
    """What one of our own writers puts into a JSON file."""
    with TemporaryDirectory() as name:
        save(Path(name) / "whole.json")
        return json.loads((Path(name) / "whole.json").read_text())


OWNER = Owner("planted:pointer@llama", "0123abcd", 6, 8)
HEADS = tuple(CircuitHead(group, 1, head, "readout") for head, group in enumerate("ABC"))
NODES = (Node(1, 2, "readout"), Node(0, 1, "swap_partner"))
EDGES = (Edge(NODES[1], NODES[0], "z", 1.0, 0.5, 1.5), Edge(NODES[0], None, "z", 1.0, 0.5, 1.5))
CIRCUIT = saved_content(lambda path: circuit.save(Circuit(HEADS), OWNER, path))
GRAPH = saved_content(lambda path: graph.save(Graph(NODES, EDGES, {}), OWNER, path))
NOTE = {"schema": 1, "experiment": "toy", "settings": {"n": 1}, "address": "toy/key"}
TOML = files("rebinding.paper").joinpath("procedures", "controlled.toml").read_text().splitlines()


def encode_content(content: Any) -> bytes:
    """As JSON, with numbers that no JSON has, and what is no text."""
    return json.dumps(content).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(("load", "whole"), [(circuit.load, CIRCUIT), (graph.load, GRAPH)], ids=["circuit", "graph"])
@cases("files")
@given(st.data(), st.integers(0, 60))
def test_fuzzed_circuits_and_graphs_are_read_or_refused(
    folder: Path, load: Callable[[Path, Owner], Any], whole: Any, data: st.DataObject, short: int
) -> None:
    """One whose heads exist, or an error; also where the file is cut short."""
    path = folder / "circuit.json"
    path.write_bytes(encode_content(data.draw(mutated(whole)))[: -short if 0 < short < 30 else None])
    refused(lambda: load(path, OWNER).lines(), CircuitError)


@cases("files")
@given(st.data())
def test_fuzzed_procedures_are_read_or_refused(folder: Path, data: st.DataObject) -> None:
    """A file with lines exchanged, missing, or of somebody else's."""
    lines = ['like = "controlled"', *TOML]
    wrong_types = ("[]", "nan", "inf", "-1", "''", "['x']", "{}", "[[1]]", "1979-05-27", "true", "9" * 5000)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        wrong_type = st.sampled_from([f"{lines[at].partition('=')[0]}= {value}" for value in wrong_types])
        lines[at : at + 1] = data.draw(st.lists(st.text(max_size=9) | wrong_type, max_size=2))
    path = folder / "mine.toml"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace"))
    refused(lambda: procedure.read_procedure(path).plain)


@cases("files")
@given(mutated(NOTE), st.sampled_from((pa.array([1, 2]), pa.array(["a", None]), pa.array([[1], []]), pa.nulls(2))))
def test_fuzzed_evidence_is_read_or_refused(folder: Path, note: Any, column: pa.Array) -> None:
    """Parquet files that are whole, with any settings and columns; one made against its reader is that reader's."""
    path, content = folder / "key.parquet", encode_content(note)
    pq.write_table(pa.table({"item": column}).replace_schema_metadata({KEY: content, b"pandas": content}), path)
    for attempt in (Evidence.load, Evidence.address):
        refused(lambda attempt=attempt: attempt(path), EvidenceError)


REPORT = saved_content(
    lambda path: shutil.copy(make(path.parent / "r", [make_row(), make_row(model="b")], bare=True) / CLAIMS, path)
)


@pytest.fixture(scope="module")
def report(folder: Path) -> Path:
    """A report without its pictures' evidence."""
    return make(folder / "report", [make_row(), make_row("binding.k_redirects", "planted:global@llama")], bare=True)


@cases("files")
@given(mutated(REPORT))
def test_fuzzed_claims_are_read_or_refused(report: Path, content: Any) -> None:
    """A `claims.json` that says anything: a run that can be compared with another, or an error."""
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
