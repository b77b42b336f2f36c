"""The table and the page give the reason of a gate that stopped several claims once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fixtures.verdict_table import table
from rebinding.report.folder import read
from rebinding.report.page import html
from rebinding.report.summary import MAX_NAMED, group_stopped_claims
from rebinding.verdicts.judgement import RUN, Judgement
from tests.report.folders import make, make_row, summary_of

IDS = ("tracing.object_direct", "tracing.five_boxes.object_direct", *(f"binding.claim_{n}" for n in range(MAX_NAMED)))
REASONS = {3: "8 of 24 answers are right, chance is 1/3", 5: "4 of 24 answers are right, chance is 1/5"}
STATEMENT = f"{REASONS[3]}: nothing can be judged on this model"


def make_stopped(
    id: str, gate: str = "above_chance", reasons: str = REASONS[3], model: str = "a folder", **fields: str
) -> Judgement:
    """A claim that a gate stopped, on a model of which the paper asserts it."""
    empty = dict.fromkeys(("measured", "low", "high", "margin", "n", "p_value", "against", "because"))
    return make_row(
        id, model, **empty | {"verdict": "INVALID", "gate": gate, "reason": reasons, "evidence": ()} | fields
    )


def stop_all_claims() -> list[Judgement]:
    """All claims of a model that cannot do the task."""
    return [make_stopped(id, reasons=REASONS[5 if "five" in id else 3]) for id in IDS]


def test_a_model_that_cannot_do_the_task() -> None:
    (group,) = group_stopped_claims(stop_all_claims())
    assert (group.ids, group.has_all_claims) == (IDS, True)
    assert group.lines[0] == STATEMENT
    assert group.other_reasons == (f"for 1 of the rows: {REASONS[5]}",)
    assert "--design" in group.advice[0]
    assert group.advice[1].endswith("rebinding prompt --model 'a folder' --answer")
    assert group.lines[-1] == f"{len(IDS)} rows: INVALID (above_chance)"


def test_claims_about_several_models_give_no_advice_about_a_model() -> None:
    (group,) = group_stopped_claims([make_stopped(id, model=RUN) for id in ("binding.a", "binding.b")])
    assert group.lines == (REASONS[3], "2 rows: INVALID (above_chance)")


def test_a_gate_that_stops_some_claims() -> None:
    """Few are named, many are counted by section; nothing is said of the model."""
    reason = "the circuit has no heads in group B"
    many = [make_stopped(f"binding.{n}", "group_present", reason) for n in range(MAX_NAMED)]
    (group,) = group_stopped_claims([make_row("circuit.compact", "a folder"), *many])
    assert group.lines[0] == reason
    assert group.lines[-1] == f"{MAX_NAMED} rows: INVALID (group_present): binding.0, binding.1, binding.2, binding.3"
    (group,) = group_stopped_claims(
        [make_row("circuit.compact", "a folder"), *many, make_stopped("roles.b", "group_present", reason)]
    )
    assert group.lines[-1] == f"{MAX_NAMED + 1} rows: INVALID (group_present): binding {MAX_NAMED}, roles 1"


@pytest.mark.parametrize(
    "claims",
    [
        [make_stopped("a"), make_row("b", "a folder")],
        [make_stopped("a"), make_stopped("b", model="another")],
        [make_stopped("a"), make_stopped("b", "finite")],
        [make_stopped(id, expected="INVALID (above_chance)") for id in IDS],
        [make_row(id, verdict="NOT REPLICATED") for id in IDS],
    ],
    ids=["one of two", "one a model", "one a gate", "as planted", "not replicated"],
)
def test_claims_that_are_not_grouped(claims: list[Judgement]) -> None:
    assert not [group for model in summary_of(claims).models for group in model.stopped_groups]


def test_the_table_has_one_line_for_all() -> None:
    """Another model keeps its rows, and the columns fit these."""
    lines = list(table(summary_of([*stop_all_claims(), make_row("circuit.compact", "able")]).models))
    assert lines[:2] == ["a folder", f"  {STATEMENT}"]
    assert [line for line in lines if "INVALID" in line] == [f"  {len(IDS)} rows: INVALID (above_chance)"]
    assert [line.split()[0] for line in lines[lines.index("able") :]] == ["able", "claim", "circuit.compact", "able:"]
    assert not any(id in line for line in lines for id in IDS)


def articles(text: str) -> list[str]:
    """Addresses of claims."""
    return re.findall(r'<article class="claim" id="([^"]+)"', text)


def test_the_page_gives_the_reason_at_the_top_and_folds_the_claims(tmp_path: Path) -> None:
    text = html(read(make(tmp_path / "r", stop_all_claims(), kind="folder", bare=True)))
    card, _, rest = text.partition("</section>")
    assert f'<p class="sentence">{STATEMENT}.</p>' in card
    assert text.count(STATEMENT) == 1
    assert "0 replicated" not in text
    folds = rest.split('<details class="stopped">')
    assert [articles(fold) for fold in folds] == [[], [IDS[0]], [IDS[1]], list(IDS[2:])]
    assert articles(text) == list(IDS), "every claim keeps its address and its line"
    assert text.count('<details class="cell"') == len(IDS)
    assert "Not drawn on" not in text


def test_with_another_model_no_claim_is_folded(tmp_path: Path) -> None:
    claims = [*stop_all_claims(), *(make_row(id, "able") for id in IDS)]
    text = html(read(make(tmp_path / "r", claims, kind="folder", bare=True)))
    assert text.count(STATEMENT) == 1
    assert '<details class="stopped">' not in text
    assert {line.partition(":")[0] for line in re.findall(r"Not drawn on .*", text)} == {"Not drawn on able"}


def test_a_plant_that_lacks_a_group_keeps_its_rows(tmp_path: Path) -> None:
    fields = {"expected": "INVALID (group_present)", "because": "No group B was planted."}
    claims = [make_stopped(id, "group_present", "no heads", "planted:global@llama", **fields) for id in IDS]
    assert sum("INVALID (group_present)" in line for line in table(summary_of(claims).models)) == len(IDS)
    assert '<details class="stopped">' not in html(read(make(tmp_path / "r", claims, bare=True)))
