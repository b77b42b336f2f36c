"""Claims about all models of a run: judged after the models, and only if both families have one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from claims.catalogue import claim
from fixtures import report, terminal
from fixtures.cross_model import judge_across_models
from fixtures.options import SETTINGS
from rebinding.paper.claim import Claim
from rebinding.report.folder import read
from rebinding.report.page import render
from rebinding.report.summary import summarise
from rebinding.study.model_spec import ModelSpec, parse_model
from rebinding.study.settings import Settings
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import RUN, Judgement, judgement
from rebinding.verdicts.outcome import ConventionVerdict, Outcome

CANCELS = claim("binding.qk_cancels")
DOMINANCE = claim("binding.key_dominance")
FAMILIES = claim("binding.families_differ")
GEMMA, LLAMA, GEMMA3 = (
    parse_model(f"planted:{name}") for name in ("pointer@gemma2", "recency@llama", "pointer@gemma3")
)


def make_judgement(
    model: ModelSpec, claim: Claim, outcome: Outcome, expected: str | None = None, p: float = 0.0
) -> Judgement:
    own = ConventionVerdict("as released", outcome, False, p if outcome == "NOT REPLICATED" else None)
    gate, conventions = ("finite", ()) if outcome == "INVALID" else (None, (own,))
    verdict = Verdict(claim.kind, outcome, "as told", n=12, p_value=p, gate=gate, conventions=conventions)
    options = {"design": "published", "circuit": "declared"}
    return judgement(claim, verdict, model=model.name, expected=expected, paper=None, **options)


def judge_all(*judgements: Judgement) -> Sequence[Judgement]:
    return judge_across_models((GEMMA, LLAMA, GEMMA3), judgements)


@pytest.mark.parametrize(
    ("gemma", "llama", "combined", "deciding"),
    [
        ("REPLICATED", "REPLICATED", "REPLICATED", GEMMA),
        ("NOT REPLICATED", "REPLICATED", "NOT REPLICATED", GEMMA),
        ("REPLICATED", "NOT REPLICATED", "NOT REPLICATED", LLAMA),
        ("REPLICATED", "INCONCLUSIVE", "INCONCLUSIVE", LLAMA),
        ("NOT REPLICATED", "INVALID", "INVALID", LLAMA),
    ],
)
def test_every_model_must_show_the_signature_of_its_family(
    gemma: Outcome, llama: Outcome, combined: Outcome, deciding: ModelSpec
) -> None:
    parts = make_judgement(GEMMA, CANCELS, gemma), make_judgement(LLAMA, DOMINANCE, llama)
    (result,) = judge_all(*(replace(part, expected=part.detailed_verdict) for part in parts))
    assert (result.id, result.model, result.verdict) == ("binding.families_differ", RUN, combined)
    assert result.expected == {"INCONCLUSIVE": None, "INVALID": "INVALID (finite)"}.get(combined, combined)
    assert result.as_expected
    assert result.gate == ("finite" if combined == "INVALID" else None)
    assert result.part == (deciding.name,)


def test_the_deciding_part_of_a_model_follows_its_name() -> None:
    open_ = replace(make_judgement(LLAMA, DOMINANCE, "INCONCLUSIVE"), part=("keys", "dR"), unidentified=True)
    (result,) = judge_all(make_judgement(GEMMA, CANCELS, "REPLICATED"), open_)
    assert (result.part, result.unidentified) == ((LLAMA.name, "keys", "dR"), True)


def test_narrow_refutation_by_a_single_model_stays_open() -> None:
    parts = [make_judgement(GEMMA, CANCELS, "REPLICATED"), make_judgement(GEMMA3, CANCELS, "REPLICATED")]
    edge, sure = (
        judge_all(*parts, make_judgement(LLAMA, DOMINANCE, "NOT REPLICATED", p=p))[0].verdict for p in (0.03, 0.01)
    )
    assert (edge, sure) == ("INCONCLUSIVE", "NOT REPLICATED")


def by_convention(model: ModelSpec, claim: Claim, **conventions: tuple[Outcome, bool]) -> Judgement:
    """A judgement with what each convention shows: the outcome of its own signature, and whether it shows the other."""
    entries = tuple(
        ConventionVerdict(name, outcome, shows_other, 0.001 if outcome == "NOT REPLICATED" else None)
        for name, (outcome, shows_other) in conventions.items()
    )
    return replace(make_judgement(model, claim, next(iter(conventions.values()))[0]), conventions=entries)


@pytest.mark.parametrize(
    ("gemma", "llama", "combined"),
    [
        ({"a": ("REPLICATED", False)}, {"a": ("REPLICATED", False)}, "REPLICATED"),
        # the signatures are shown under different conventions
        (
            {"a": ("REPLICATED", False), "b": ("NOT REPLICATED", False)},
            {"a": ("NOT REPLICATED", False), "b": ("REPLICATED", False)},
            "NOT REPLICATED",
        ),
        # one model, called by both names: a convention that shows the one does not show the other
        (
            {"a": ("REPLICATED", False), "b": ("NOT REPLICATED", True)},
            {"a": ("NOT REPLICATED", True), "b": ("REPLICATED", False)},
            "NOT REPLICATED",
        ),
        # the other signature under one convention leaves it open
        (
            {"a": ("REPLICATED", False), "b": ("NOT REPLICATED", True)},
            {"a": ("REPLICATED", False), "b": ("INCONCLUSIVE", False)},
            "INCONCLUSIVE",
        ),
        # a convention that is not judged on a model is left out, there and for all
        (
            {"a": ("NOT REPLICATED", False), "b": ("REPLICATED", False)},
            {"b": ("REPLICATED", False)},
            "REPLICATED",
        ),
        ({"a": ("REPLICATED", False)}, {"b": ("REPLICATED", False)}, "INCONCLUSIVE"),
    ],
)
def test_families_are_compared_under_one_convention(
    gemma: dict[str, tuple[Outcome, bool]], llama: dict[str, tuple[Outcome, bool]], combined: Outcome
) -> None:
    (result,) = judge_all(by_convention(GEMMA, CANCELS, **gemma), by_convention(LLAMA, DOMINANCE, **llama))
    assert result.verdict == combined


def test_of_several_conventions_that_hold_the_first_decides() -> None:
    both = {"a": ("REPLICATED", False), "b": ("REPLICATED", False)}
    (result,) = judge_all(by_convention(GEMMA, CANCELS, **both), by_convention(LLAMA, DOMINANCE, **both))
    assert "signature (a)" in result.reason


def test_single_family_is_not_judged() -> None:
    assert not judge_all(make_judgement(GEMMA, CANCELS, "REPLICATED"), make_judgement(GEMMA3, CANCELS, "REPLICATED"))
    assert not judge_all(make_judgement(GEMMA, CANCELS, "REPLICATED"), make_judgement(GEMMA, DOMINANCE, "REPLICATED"))


def test_each_procedure_is_judged_on_its_own() -> None:
    pairs = (GEMMA, CANCELS), (LLAMA, DOMINANCE)
    published = [make_judgement(model, claim, "REPLICATED") for model, claim in pairs]
    controlled = [make_judgement(model, claim.controlled(), "NOT REPLICATED") for model, claim in pairs]
    verdicts = {result.id: result.verdict for result in judge_all(*published, *controlled)}
    assert verdicts == {
        "binding.families_differ": "REPLICATED",
        "binding.families_differ.controlled": "NOT REPLICATED",
    }


@pytest.mark.parametrize("expected", ["REPLICATED", "NOT REPLICATED"])
def test_cross_model_row_is_in_the_table_and_can_fail_the_run(expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each model is as expected, the claim about the run is too; a wrong verdict fails the run."""
    judgements = [
        make_judgement(GEMMA, CANCELS, "REPLICATED", "REPLICATED"),
        make_judgement(LLAMA, DOMINANCE, "REPLICATED", expected),
    ]
    monkeypatch.setattr(terminal, "collect_judgements", lambda reporter: judgements)
    settings = Settings((GEMMA, LLAMA))
    config: Any = SimpleNamespace(
        stash={SETTINGS: settings},
        pluginmanager=SimpleNamespace(get_plugin={"terminalreporter": "terminalreporter"}.get),
        get_verbosity=lambda: 0,
    )
    session: Any = SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)
    terminal.pytest_sessionfinish(session)
    assert (session.exitstatus == pytest.ExitCode.OK) == (expected == "REPLICATED")
    lines = list(terminal.verdict_lines(config, terminal.summary_of(config, None)))
    headline, table = lines[: lines.index("")], lines[lines.index("") :]
    assert headline[headline.index(RUN) + 1].split()[0] == "5", "the headline claim that rests on it"
    assert table[table.index(RUN) + 2].split()[0] == "binding.families_differ"


def test_the_report_has_it_beside_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `claims.json` after the models, and on the page under a heading of its own; with the command of the run,
    its folder written from the current one, and its day."""
    monkeypatch.chdir(tmp_path)
    arguments = ("claims", "--report", str(tmp_path / "out"))
    config: Any = SimpleNamespace(stash=pytest.Stash(), invocation_params=SimpleNamespace(args=arguments))
    config.stash[SETTINGS] = Settings((GEMMA, LLAMA))
    judgements = [make_judgement(GEMMA, CANCELS, "REPLICATED"), make_judgement(LLAMA, DOMINANCE, "REPLICATED")]
    summary = summarise(
        [*judge_across_models((GEMMA, LLAMA), judgements), *judgements], {GEMMA.name: True, LLAMA.name: True}
    )
    report.write(tmp_path, config, summary)
    run = read(tmp_path)
    assert [row.model for row in run.claims] == [GEMMA.name, LLAMA.name, RUN]
    assert run.command == "pytest claims --report out"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", run.date)
    page = render(tmp_path, None).read_text()
    assert RUN in page
    assert FAMILIES.statement in page
