"""The tree: who may import whom, what a claim may see, how long a file is, and that no test reads a clock."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping

import pytest

from rebinding.experiments.workbench import Workbench
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.study import Study
from rebinding.verdicts.judgement import Judgement
from tests.tree.syntax_trees import ROOT, has_requests, imported, imported_names, trees

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
    # claims about a task of their own see the public interface
    "study": ("task", "surgery", "paper", "evidence", "verdicts", "experiments", "planted", "models", "api"),
    "engines": ("task", "surgery", "evidence", "models", "experiments", "study"),
    # it lets gates pass, so it knows what they are called
    "cost": ("task", "surgery", "paper", "evidence", "verdicts", "experiments", "planted", "models", "study"),
    # it makes up what a study would be given, so it knows what the study knows, and what gates and verdicts are called
    "simulate": ("task", "surgery", "paper", "evidence", "verdicts", "experiments", "planted", "models", "study"),
    "report": ("task", "evidence", "verdicts", "paper", "experiments"),
    # the public interface: everything but engines, cost and simulation; of the report it draws graphs
    "api": ("task", "surgery", "paper", "evidence", "verdicts", "experiments", "models", "report"),
    # what suites of claims import; of all rooms, this one knows pytest
    "testing": ("api", "paper", "study", "verdicts"),
    "cli": (
        "api",
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
DRAWN_FROM = ("request", "summary", "graph", "random_draws")
"""What the report reads of experiments: columns, the numbers that sum evidence up, graphs, and seeds."""
SINGLE_FILES = tuple(
    name
    for name in trees()
    if name.startswith("rebinding.experiments.") and not name.endswith(".request") and has_requests(name)
)
"""Files with requests and what measures them. Claims, figures and simulators import requests and summaries from them,
and no function that runs."""
DOORS = ("rebinding.testing", "rebinding.testing.first_suite", "rebinding.pytest_plugin")
"""What a suite of claims imports, the first suite, and what pytest finds: the only modules that know pytest. No other
module of the package imports them."""
SHARED = {"ablation"}
"""A file with requests that several sections use."""
NO_TORCH = ("task", "paper", "verdicts")
"""Rooms that need no tensors. (Evidence has activations.)"""
VISIBLE = (
    "rebinding.paper",
    "rebinding.evidence",
    "rebinding.verdicts",
    "rebinding.study.study",
    "rebinding.testing",
    *SINGLE_FILES,
)
"""What claims may import of the package, with all that is below it; and the requests and summaries of experiments. Of
`rebinding.study` this is one module: the others load models and know what was planted in them."""
OF_HELPERS = ("rebinding.experiments.binding.conditions",)
"""What helpers of claims may import besides: conventions of section 5, without a model."""
RUNNING = ("measure", "run_", "replay_", "evaluate", "mean_z")
"""Beginnings of the names of functions that run a model."""


def room(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "rebinding" and len(parts) > 1 else None


def modules(package: str) -> list[str]:
    return [name for name in trees() if room(name) == package]


def test_every_room_is_in_the_table() -> None:
    folders = {path.name for path in (ROOT / "rebinding").iterdir() if (path / "__init__.py").is_file()}
    assert folders == set(TABLE)
    assert {name for name in trees() if room(name) and "." not in name.removeprefix("rebinding.")} <= {
        *(f"rebinding.{module}" for module in TABLE),
        "rebinding.__main__",
        "rebinding.pytest_plugin",
    }


@pytest.mark.parametrize("package", TABLE)
def test_a_room_imports_what_it_may(package: str) -> None:
    assert modules(package)
    wrong = [
        (name, module)
        for name in modules(package)
        for module in imported(name)
        if (package_of_module := room(module)) is not None
        and package_of_module != package
        and package_of_module not in TABLE[package]
    ]
    assert not wrong


def test_no_section_imports_another() -> None:
    """What two sections need has a home beside them."""
    folders = {name.split(".")[2] for name in modules("experiments") if name.count(".") > 2}
    sections = {*folders, *(name.rpartition(".")[2] for name in SINGLE_FILES)} - SHARED
    assert len(sections) >= 8
    pairs = [
        (name.split(".")[2], module.split(".")[2])
        for name in modules("experiments")
        for module in imported(name)
        if module.startswith("rebinding.experiments.")
    ]
    assert [(own, other) for own, other in pairs if own in sections and other in sections and own != other] == []


def test_the_package_knows_neither_claims_nor_pytest() -> None:
    strange = ("claims", "fixtures", "tests", "pytest", "_pytest")
    modules_of_package = [name for name in trees() if name.startswith("rebinding") and name not in DOORS]
    assert not [
        (name, module)
        for name in modules_of_package
        for module in imported(name)
        if module.split(".")[0] in strange or module in DOORS
    ]
    assert {*DOORS} <= {*trees()}


@pytest.mark.parametrize("package", NO_TORCH)
def test_rooms_without_tensors(package: str) -> None:
    assert not [
        (name, module) for name in modules(package) for module in imported(name) if module.split(".")[0] == "torch"
    ]


def test_the_report_computes_nothing() -> None:
    """It reads what experiments say of their evidence, and nothing that runs a model."""
    experiments = {module for name in modules("report") for module in imported(name) if room(module) == "experiments"}
    assert experiments
    assert not {module for module in experiments if module.rpartition(".")[2] not in DRAWN_FROM} - {*SINGLE_FILES}


def test_summaries_figures_and_simulators_run_no_model() -> None:
    summaries = [name for name in modules("experiments") if name.endswith(".summary")]
    drawing = [name for name in modules("report") if name.startswith("rebinding.report.figures.")]
    simulators = [f"rebinding.simulate.{name}" for name in ("attention", "circuits", "tracing")]
    assert len(summaries) >= 5 <= len(drawing)
    assert {*simulators} <= set(trees())
    wrong = [
        (name, module)
        for name in (*summaries, *drawing, *simulators)
        for module in imported(name)
        if module.endswith((".measure", ".workbench", ".table")) or room(module) in ("surgery", "models")
    ]
    assert not wrong


def test_nothing_that_runs_is_imported_from_a_section_of_one_file() -> None:
    readers = [name for name in trees() if name.startswith(("claims.", "rebinding.report.", "rebinding.simulate."))]
    names = [name for reader in readers for module, name in imported_names(reader) if module in SINGLE_FILES]
    assert len(names) > 5
    assert len(SINGLE_FILES) >= 4
    assert not [name for name in names if name.startswith(RUNNING)]


def is_visible(name: str) -> bool:
    """Whether a test of a claim may import it."""
    if name.partition(".")[0] not in ("rebinding", "fixtures"):
        return True
    is_of_experiment = name.startswith("rebinding.experiments.") and name.endswith((".summary", ".request"))
    return is_of_experiment or any(f"{name}.".startswith(f"{visible}.") for visible in VISIBLE)


def test_visible_modules_exist() -> None:
    assert not {*VISIBLE, *OF_HELPERS} - set(trees())
    names = {name.rpartition(".")[2] for name in modules("experiments")}
    assert not {*DRAWN_FROM} - names


def test_claims_see_study_evidence_and_verdicts() -> None:
    claims = [name for name in trees() if name.startswith("claims.") and name != "claims.test_generator"]
    assert len([name for name in claims if name.startswith("claims.test_")]) >= 5
    seen = [(name, module) for name in claims for module in imported(name) if not is_visible(module)]
    assert [(name, module) for name, module in seen if name.startswith("claims.test_")] == []
    assert {module for _, module in seen} == set(OF_HELPERS)


@pytest.mark.parametrize("name", [name for name in modules("study") if name not in VISIBLE])
def test_the_rest_of_the_study_is_hidden(name: str) -> None:
    assert not is_visible(name)


@pytest.mark.parametrize(
    "name", ["fixtures.judging", "rebinding.planted.truth", "rebinding.models", "rebinding.api.model"]
)
def test_models_and_truths_are_hidden(name: str) -> None:
    assert name in trees()
    assert not is_visible(name)


EXPERIMENTS = [name for name in trees() if name.startswith("rebinding.experiments.")]
HOOKS = ("register_",)


def attributes(name: str) -> set[str]:
    return {node.attr for node in ast.walk(trees()[name]) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_no_experiment_sets_a_hook(name: str) -> None:
    assert not [attribute for attribute in attributes(name) if attribute.startswith(HOOKS)]


def test_only_the_search_and_the_replays_read_the_model() -> None:
    """The search estimates by slopes and by weights, and what it reports is measured by edits; replays are compared
    with the model's own forward."""
    assert len(EXPERIMENTS) > 25
    reading = {name for name in EXPERIMENTS if "model" in attributes(name)}
    assert reading == {
        "rebinding.experiments.search.pairs",
        "rebinding.experiments.unedited",
    }


OF_THE_MODEL = ("truth", "plant", "spec", "session", "wide_session", "session_for", "loaded_model", "load_circuit")
"""Names of `ModelUnderTest` that lead to what was planted, or to the model itself."""
OF_A_BENCH = ("surgeon",)


def public(cls: type) -> set[str]:
    """The public attributes of a class."""
    names = {*dir(cls), *inspect.get_annotations(cls), *inspect.signature(cls).parameters}
    return {name for name in names if not name.startswith("_")}


OF_OTHER_TASKS = ("measure",)
"""Names of `Study` that run a model; the claims of the paper make requests instead."""

HIDDEN = {*OF_THE_MODEL, *OF_A_BENCH, "expected"}


def test_hidden_names_exist() -> None:
    assert set(OF_THE_MODEL) <= public(ModelUnderTest)
    assert set(OF_A_BENCH) <= public(Workbench)
    assert "expected" in public(Judgement)


@pytest.mark.parametrize("name", [module for module in trees() if module.startswith("claims.")])
def test_no_claim_asks_for_what_was_planted(name: str) -> None:
    attributes = {node.attr for node in ast.walk(trees()[name]) if isinstance(node, ast.Attribute)}
    assert not attributes & {*HIDDEN, *OF_OTHER_TASKS}
    assert not [attribute for attribute in attributes if attribute.startswith("_")]


def test_a_study_shows_nothing_that_is_hidden() -> None:
    assert not public(Study) & HIDDEN
    assert set(OF_OTHER_TASKS) <= public(Study)
    assert {"binding", "trace_residuals", "discoveries", "printed", "circuit"} <= public(Study)


def test_expectations_are_compared_in_one_place() -> None:
    """`Truth` is read where a judgement is made, by the model, and where it is said how many prompts
    and which rows a plant needs."""
    calls = [
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "truth")
        or (isinstance(node, ast.Name) and node.id == "truth_of")
        if not name.startswith("rebinding.planted")
    ]
    assert set(calls) == {
        "fixtures.judging",
        "rebinding.study.model_under_test",
        "rebinding.study.model_spec",
    }


MAXIMUM = 450
FOLDERS = ("rebinding", "claims", "fixtures", "tests", "benchmarks", "browser", "cluster", "peers")


def test_no_file_is_too_long() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 100
    lengths = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in paths}
    assert not {name: count for name, count in lengths.items() if count > MAXIMUM}


CLOCKS = {"time", "timeit", "datetime"}
"""Modules that read a clock, under whatever name they are imported."""
TOOLS = {"tests/arithmetic/portability.py", "tests/oracles/mutants/random_faults.py"}
"""Commands that say how long something takes."""


def reads_a_clock(tree: ast.Module) -> bool:
    """Whether a module imports one that reads a clock, or something from it."""
    nodes = list(ast.walk(tree))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return bool(names & CLOCKS)


def test_no_test_reads_a_clock() -> None:
    paths = [path for folder in ("tests", "claims") for path in (ROOT / folder).rglob("*.py")]
    reading = {str(path.relative_to(ROOT)) for path in paths if reads_a_clock(ast.parse(path.read_text("utf-8")))}
    assert reading == {tool for tool in TOOLS if (ROOT / tool).exists()}  # in a copy of the tree they may be missing
