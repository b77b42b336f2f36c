"""Sentences about all models of a run: judged when the models have been, and only where both families are there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from claims.catalogue import claim
from fixtures import report, terminal
from fixtures.cross_model import RUN, judge_across_models
from fixtures.options import SETTINGS
from rebinding.paper.claim import Claim
from rebinding.report.folder import read
from rebinding.report.page import render
from rebinding.report.summary import summarise
from rebinding.study.model_spec import ModelSpec, parse_model
from rebinding.study.settings import Settings
from rebinding.verdicts import Verdict
from rebinding.verdicts.judgement import Judgement, judgement
from rebinding.verdicts.outcome import Outcome

CANCELS = claim("binding.qk_cancels")
DOMINANCE = claim("binding.key_dominance")
FAMILIES = claim("binding.families_differ")
GEMMA, LLAMA, OTHER = (parse_model(f"planted:{name}") for name in ("pointer@gemma2", "recency@llama", "pointer@gemma3"))


def told(model: ModelSpec, claim: Claim, outcome: Outcome, expected: str | None = None, p: float = 0.0) -> Judgement:
    verdict = Verdict(claim.kind, outcome, "as told", n=12, p_value=p, gate="finite" if outcome == "INVALID" else None)
    where = {"design": "published", "circuit": "declared"}
    return judgement(claim, verdict, model=model.name, expected=expected, paper=None, **where)


def over(*found: Judgement) -> Sequence[Judgement]:
    return judge_across_models((GEMMA, LLAMA, OTHER), found)


@pytest.mark.parametrize(
    ("gemma", "llama", "together", "deciding"),
    [
        ("REPLICATED", "REPLICATED", "REPLICATED", GEMMA),
        ("NOT REPLICATED", "REPLICATED", "NOT REPLICATED", GEMMA),
        ("REPLICATED", "NOT REPLICATED", "NOT REPLICATED", LLAMA),
        ("REPLICATED", "INCONCLUSIVE", "INCONCLUSIVE", LLAMA),
        ("NOT REPLICATED", "INVALID", "INVALID", LLAMA),
    ],
)
def test_every_model_must_show_what_its_family_is_said_to_do(
    gemma: Outcome, llama: Outcome, together: Outcome, deciding: ModelSpec
) -> None:
    parts = told(GEMMA, CANCELS, gemma), told(LLAMA, DOMINANCE, llama)
    (one,) = over(*(replace(part, expected=part.detailed_verdict) for part in parts))
    assert (one.id, one.model, one.verdict) == ("binding.families_differ", RUN, together)
    assert one.expected == {"INCONCLUSIVE": None, "INVALID": "INVALID (finite)"}.get(together, together)
    assert one.as_expected
    assert one.gate == ("finite" if together == "INVALID" else None)
    assert one.part == (deciding.name,)


def test_the_deciding_part_of_a_model_follows_its_name() -> None:
    open_ = replace(told(LLAMA, DOMINANCE, "INCONCLUSIVE"), part=("keys", "dR"), unidentified=True)
    (one,) = over(told(GEMMA, CANCELS, "REPLICATED"), open_)
    assert (one.part, one.unidentified) == ((LLAMA.name, "keys", "dR"), True)


def test_one_of_several_refuted_at_the_edge_leaves_it_open() -> None:
    parts = [told(GEMMA, CANCELS, "REPLICATED"), told(OTHER, CANCELS, "REPLICATED")]
    edge, sure = (over(*parts, told(LLAMA, DOMINANCE, "NOT REPLICATED", p=p))[0].verdict for p in (0.03, 0.01))
    assert (edge, sure) == ("INCONCLUSIVE", "NOT REPLICATED")


def test_nothing_is_said_of_one_family() -> None:
    assert not over(told(GEMMA, CANCELS, "REPLICATED"), told(OTHER, CANCELS, "REPLICATED"))
    assert not over(told(GEMMA, CANCELS, "REPLICATED"), told(GEMMA, DOMINANCE, "REPLICATED"))


def test_the_procedures_are_kept_apart() -> None:
    pairs = (GEMMA, CANCELS), (LLAMA, DOMINANCE)
    published = [told(model, claim, "REPLICATED") for model, claim in pairs]
    controlled = [told(model, claim.controlled(), "NOT REPLICATED") for model, claim in pairs]
    found = {one.id: one.verdict for one in over(*published, *controlled)}
    assert found == {
        "binding.families_differ": "REPLICATED",
        "binding.families_differ.controlled": "NOT REPLICATED",
    }


@pytest.mark.parametrize("expected", ["REPLICATED", "NOT REPLICATED"])
def test_it_stands_in_the_table_and_can_fail_the_run(expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model came out as it must; what they say together is then as expected, and a wrong one fails the run."""
    found = [told(GEMMA, CANCELS, "REPLICATED", "REPLICATED"), told(LLAMA, DOMINANCE, "REPLICATED", expected)]
    monkeypatch.setattr(terminal, "gathered", lambda reporter: found)
    settings = Settings((GEMMA, LLAMA))
    config: Any = SimpleNamespace(
        stash={SETTINGS: settings},
        pluginmanager=SimpleNamespace(get_plugin=lambda name: name),
        get_verbosity=lambda: 0,
    )
    session: Any = SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)
    terminal.pytest_sessionfinish(session)
    assert (session.exitstatus == pytest.ExitCode.OK) == (expected == "REPLICATED")
    lines = list(terminal.verdict_lines(config, terminal.summary_of(config, None)))
    headline, table = lines[: lines.index("")], lines[lines.index("") :]
    assert headline[headline.index(RUN) + 1].split()[0] == "5", "the headline claim that rests on it"
    assert table[table.index(RUN) + 2].split()[0] == "binding.families_differ"


def test_the_report_has_it_beside_the_models(tmp_path: Path) -> None:
    """In `claims.json` after the models, and on the page under a heading of its own."""
    config: Any = SimpleNamespace(stash=pytest.Stash())
    config.stash[SETTINGS] = Settings((GEMMA, LLAMA))
    found = [told(GEMMA, CANCELS, "REPLICATED"), told(LLAMA, DOMINANCE, "REPLICATED")]
    summary = summarise([*judge_across_models((GEMMA, LLAMA), found), *found], {GEMMA.name: True, LLAMA.name: True})
    report.write(tmp_path, config, summary)
    assert [one.model for one in read(tmp_path).claims] == [GEMMA.name, LLAMA.name, RUN]
    page = render(tmp_path, None).read_text()
    assert RUN in page
    assert FAMILIES.statement in page
