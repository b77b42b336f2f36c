"""What one gate has stopped is said once, in the table and on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fixtures.verdict_table import table
from rebinding.report.figures import FIGURES
from rebinding.report.folder import read
from rebinding.report.page import html
from rebinding.report.stopped import FEW, group_stopped
from rebinding.verdicts.judgement import Judgement
from tests.report.folders import judged, make, summary_of

IDS = ("tracing.object_direct", "tracing.five_boxes.object_direct", *(f"binding.claim_{n}" for n in range(FEW)))
SEEN = {3: "8 of 24 answers are right, chance is 1/3", 5: "4 of 24 answers are right, chance is 1/5"}
NOTHING = f"{SEEN[3]}: nothing can be judged on this model"


def failed(
    id: str, gate: str = "above_chance", reasons: str = SEEN[3], model: str = "a folder", **fields: str
) -> Judgement:
    """A claim that a gate has stopped, on a model of which the paper asserts it."""
    none = dict.fromkeys(("measured", "low", "high", "margin", "n", "p_value", "against", "because"))
    return judged(id, model, **none | {"verdict": "INVALID", "gate": gate, "reason": reasons, "evidence": ()} | fields)


def unable() -> list[Judgement]:
    """All that is judged on a model that cannot do the task."""
    return [failed(id, reasons=SEEN[5 if "five" in id else 3]) for id in IDS]


def test_a_model_that_cannot_do_the_task() -> None:
    (one,) = group_stopped(unable())
    assert (one.ids, one.is_everything) == (IDS, True)
    assert one.lines[0] == NOTHING
    assert one.other_reasons == (f"for 1 of the claims: {SEEN[5]}",)
    assert "--design" in one.next[0]
    assert one.next[1].endswith("python -m rebinding prompt --model 'a folder' --answer")
    assert one.lines[-1] == f"{len(IDS)} claims: INVALID (above_chance)"


def test_a_gate_that_stops_some_claims() -> None:
    """Few are named, many are counted by section; nothing is said of the model."""
    without = "the circuit has no heads in group B"
    many = [failed(f"binding.{n}", "group_present", without) for n in range(FEW)]
    (one,) = group_stopped([judged("circuit.compact", "a folder"), *many])
    assert one.lines[0] == without
    assert one.lines[-1] == f"{FEW} claims: INVALID (group_present): binding.0, binding.1, binding.2, binding.3"
    (one,) = group_stopped([judged("circuit.compact", "a folder"), *many, failed("roles.b", "group_present", without)])
    assert one.lines[-1] == f"{FEW + 1} claims: INVALID (group_present): binding {FEW}, roles 1"


@pytest.mark.parametrize(
    "claims",
    [
        [failed("a"), judged("b", "a folder")],
        [failed("a"), failed("b", model="another")],
        [failed("a"), failed("b", "finite")],
        [failed(id, expected="INVALID (above_chance)") for id in IDS],
        [judged(id, verdict="NOT REPLICATED") for id in IDS],
    ],
    ids=["one of two", "one a model", "one a gate", "as planted", "not replicated"],
)
def test_what_is_not_said_together(claims: list[Judgement]) -> None:
    assert not [one for model in summary_of(claims).models for one in model.stopped]


def test_the_table_has_one_line_for_all() -> None:
    """Another model keeps its rows, and the columns fit these."""
    lines = list(table(summary_of([*unable(), judged("circuit.compact", "able")]).models))
    assert lines[:2] == ["a folder", f"  {NOTHING}"]
    assert [line for line in lines if "INVALID" in line] == [f"  {len(IDS)} claims: INVALID (above_chance)"]
    assert [line.split()[0] for line in lines[lines.index("able") :]] == ["able", "claim", "circuit.compact", "able:"]
    assert not any(id in line for line in lines for id in IDS)


def articles(text: str) -> list[str]:
    """Addresses of claims."""
    return re.findall(r'<article class="claim" id="([^"]+)"', text)


def test_the_page_says_it_at_the_top_and_folds_the_claims(tmp_path: Path) -> None:
    text = html(read(make(tmp_path / "r", unable(), kind="folder", bare=True)))
    card, _, rest = text.partition("</section>")
    assert f'<p class="sentence">{NOTHING}.</p>' in card
    assert text.count(NOTHING) == 1
    assert "0 replicated" not in text
    folds = rest.split('<details class="stopped">')
    assert [articles(one) for one in folds] == [[], [IDS[0]], [IDS[1]], list(IDS[2:])]
    assert articles(text) == list(IDS), "every claim keeps its address and its line"
    assert text.count('<details class="cell"') == len(IDS)
    assert "No evidence for this figure" not in text


def test_beside_another_model_every_claim_stands_open(tmp_path: Path) -> None:
    claims = [*unable(), *(judged(id, "able") for id in IDS)]
    text = html(read(make(tmp_path / "r", claims, kind="folder", bare=True)))
    assert text.count(NOTHING) == 1
    assert '<details class="stopped">' not in text
    assert text.count("No evidence for this figure") == sum(not plate.special for plate in FIGURES), (
        "of the model that was judged"
    )


def test_a_plant_that_lacks_a_group_keeps_its_rows(tmp_path: Path) -> None:
    gone = {"expected": "INVALID (group_present)", "because": "No group B was planted."}
    claims = [failed(id, "group_present", "no heads", "planted:global@llama", **gone) for id in IDS]
    assert sum("INVALID (group_present)" in line for line in table(summary_of(claims).models)) == len(IDS)
    assert '<details class="stopped">' not in html(read(make(tmp_path / "r", claims, bare=True)))
