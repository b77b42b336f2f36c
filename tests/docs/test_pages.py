"""What the pages show is there: links lead somewhere, Python runs, commands are commands."""

from __future__ import annotations

import argparse
import importlib
import re
import shlex
from pathlib import Path

import pytest

from claims.catalogue import claims
from rebinding.cli.commands import SUBCOMMANDS
from rebinding.paper.headlines import HEADLINES
from rebinding.planted import MECHANISMS
from rebinding.planted.truth import truth_of
from rebinding.verdicts.headline import verdict_of_all
from rebinding.verdicts.judgement import NAMES, standing
from tests.docs.examples import check_words, examples, printed
from tests.docs.notebooks import TUTORIALS, prose

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "rebinding", "benchmarks", ".github")
BUILT = ROOT / "docs" / "made"
"""Where a build of the site puts what it makes from the code."""
PAGE_FILES = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
PAGES = sorted(path for path in PAGE_FILES if BUILT not in path.parents)
TEXTS = {page: page.read_text("utf-8") for page in PAGES} | {page: prose(page) for page in TUTORIALS}
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
COMMAND = re.compile(r"^(?:\$ | {4,})rebinding (.+?)(?:\s+#.*)?$", re.MULTILINE)
COMMANDS = sorted({command for text in TEXTS.values() for command in COMMAND.findall(text)})
RUNS = sorted(
    {
        match
        for text in TEXTS.values()
        for match in re.findall(r"^(?:\$ | {4,})pytest (.+?)(?:\s+#.*)?$", text, re.MULTILINE)
    }
)
OF_THEIR_OWN = ("docs/walk.md", "CONTRIBUTING.md", "docs/how-to/evaluate-a-circuit.md")
"""The walk, the examples of CONTRIBUTING, and the page about a real model are run by tests of their own."""
WITH_PYTHON = [page.relative_to(ROOT) for page in PAGES if examples(TEXTS[page])]
RUN = [page for page in WITH_PYTHON if str(page) not in OF_THEIR_OWN]
SHOWING = [f"docs/concepts/{name}.md" for name in ("stories", "surgery", "procedures", "evidence", "verdicts")]
SHARE, LAST_DIGIT = 1e-2, 1.5e-2
"""What rounds otherwise may move the second decimal that is shown; another mechanism moves more."""


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Into the project; addresses outside are not asked."""
    targets = [target for target in LINK.findall(TEXTS[page]) if "://" not in target and target[:7] != "mailto:"]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_understood(command: str, pytestconfig: pytest.Config) -> None:
    """The subcommand's own parser takes what the page says, or passes it on to pytest; nothing is run."""
    subcommand, *rest = shlex.split(command.rstrip("\\"))
    module = importlib.import_module(SUBCOMMANDS[subcommand].module)
    parser = argparse.ArgumentParser(exit_on_error=False)
    module.arguments(parser)
    _, passed_on = parser.parse_known_args(rest)
    assert not passed_on or module.PASSES_ON
    for word in passed_on:
        if word.startswith("--"):
            pytestconfig.getoption(word.partition("=")[0])  # an error, if there is none


@pytest.mark.parametrize("run", RUNS)
def test_runs_of_pytest_are_understood(run: str, pytestconfig: pytest.Config) -> None:
    """Every option is one; and a model that is named is judged without `-m gpu`, which would leave it out."""
    words = shlex.split(run)
    for word in words:
        if word.startswith("--"):
            pytestconfig.getoption(word.partition("=")[0])  # an error, if there is none
    assert not {"-m", "--model"} <= set(words)
    assert "--circuit" not in words or "--model" in words, "a file is the circuit of one model"


@pytest.mark.parametrize("page", RUN, ids=str)
def test_python_runs_and_prints_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, one after the other, as a stranger would paste them; where nothing is shown, nothing is
    printed."""
    text = (ROOT / page).read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    for output, (_, expected) in zip(printed(text), examples(text), strict=True):
        check_words(output, expected, SHARE, LAST_DIGIT)


def test_pages_with_python_are_run() -> None:
    """The pages of concepts show what they say."""
    assert set(SHOWING) <= {str(page) for page in RUN}
    for page in SHOWING:
        assert all(output for _, output in examples((ROOT / page).read_text("utf-8"))), page


def test_the_rows_among_the_results_are_those_of_the_whole_table() -> None:
    """Under the same model, whatever the columns' widths."""
    (table,) = re.findall(
        r"^```\n(planted:pointer@llama\n.*?)^```$", TEXTS[ROOT / "docs" / "results.md"], re.MULTILINE | re.DOTALL
    )
    full_table = by_model(TEXTS[ROOT / "docs" / "verdicts.md"])
    shown_table = by_model(table)
    assert sum(map(len, shown_table.values())) > 6
    assert {model: rows - full_table[model] for model, rows in shown_table.items()} == {
        model: set() for model in shown_table
    }


def test_the_four_names_among_the_results_are_those_of_the_truth() -> None:
    """Counted anew for every mechanism; that verdicts are the truth is for claims to show."""
    text = TEXTS[ROOT / "docs" / "results.md"]
    table_rows = re.findall(r"^\| `(\w+)`, .*? \|(.*)\|$", text, re.MULTILINE)
    assert {mechanism for mechanism, _ in table_rows} == set(MECHANISMS)
    for mechanism, cells in table_rows:
        truth = truth_of(mechanism)
        double_rows = [row for row in truth if f"{row}.controlled" in truth]
        names = [standing(truth[row].verdict, truth[f"{row}.controlled"].verdict) for row in double_rows]
        printed_counts = [int(cell) if cell.strip() else 0 for cell in cells.split("|")]
        assert printed_counts == [names.count(name) for name in (*NAMES.values(), None)], mechanism
        assert f"Of the {len(double_rows)} that are judged twice" in text


def test_the_headline_claims_on_the_first_page_are_those_of_the_truth() -> None:
    """Joined anew from the planted truth of the rows; that verdicts are the truth is for claims to show."""
    (headlines,) = re.findall(r"^<!-- headline -->\n(.*?)^<!--", TEXTS[ROOT / "README.md"], re.MULTILINE | re.DOTALL)
    mechanisms = re.findall(r"`(\w+)`", headlines.splitlines()[0])
    lines = [
        f"| {entry.number}. {entry.title} | {' | '.join(headline_cell(entry.number, name) for name in mechanisms)} |"
        for entry in HEADLINES
    ]
    assert len(mechanisms) == 3
    assert headlines.splitlines()[2:] == lines, "\n".join(["put this there:", *lines])


def headline_cell(number: int, mechanism: str) -> str:
    """`replicated / not: artifact`: both verdicts of a headline claim on a mechanism, and what they are together.

    Printed numbers are another model's, and do not count.
    """
    truth = truth_of(mechanism)
    counted = [claim for claim in claims() if claim.headline == number and claim.kind != "value"]
    pair = [
        verdict_of_all(truth[claim.id].verdict for claim in counted if claim.procedure == name)
        for name in ("published", "controlled")
    ]
    words = ["–" if verdict is None else verdict.lower().replace("not replicated", "not") for verdict in pair]
    combined = None if None in pair else standing(*map(str, pair))
    return " / ".join(words) + (f": {combined}" if combined else "")


def by_model(table: str) -> dict[str, set[str]]:
    """The rows of a verdict table, spaces apart, under the model whose name stands above."""
    models: dict[str, set[str]] = {}
    rows: set[str] = set()
    for line in table.splitlines():
        if re.fullmatch(r"(planted|learned):\S+", line):
            rows = models.setdefault(line, set())
        elif line.startswith("  "):
            rows.add(" ".join(line.split()))
    return models
