"""From designs to traced pairs: scoring, the filter, both queries, what is refused, what settings say."""

from __future__ import annotations

import pytest
import torch

from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing.maps import (
    TracedPair,
    UnchangedAnswer,
    candidate_logits,
    correct_ones,
    trace,
    trace_design,
    traced_pair,
)
from rebinding.experiments.tracing.request import OVERSAMPLING, counterfactual
from rebinding.experiments.tracing.summary import by_role
from rebinding.report.figures.tracing import PANELS
from rebinding.task.designs import TRACING_MODES, DesignError
from rebinding.task.prompts import PromptError
from tests.close import allowance
from tests.experiments.tracing.small_model import encoder, plan, surgeon


def pair(mode: str, number: int = 0, **options: object) -> TracedPair:
    return traced_pair(encoder(), counterfactual(plan(), number, mode, **options))


def test_candidates_are_the_originals_objects_after_the_swap() -> None:
    traced = pair("target_box")
    prompt = traced.original.prompt
    objects = [prompt.story.state()[box] for box in prompt.story.boxes]
    assert objects != list(prompt.story.objects)
    words = [encoder().tokenizer.decode([token]).strip() for token in traced.candidates]
    assert words == objects
    assert words[traced.answer] == prompt.answer
    assert encoder().tokenizer.decode([traced.rival]).strip() == traced.counterfactual.prompt.answer
    assert traced.rival not in traced.candidates


@pytest.mark.parametrize(("mode", "changes"), [("swap_only", True), ("query_box", False), ("context_and_swap", True)])
def test_mode_declares_whether_the_answer_changes(mode: str, changes: bool) -> None:
    assert pair(mode).changes_answer is changes


def test_an_absent_box_has_no_answer() -> None:
    assert pair("context_and_swap").rival is None


def test_the_partner_query_asks_about_the_partner() -> None:
    plain, partner = pair("query_box"), pair("query_box", query="partner")
    assert partner.counterfactual.prompt.question == plain.original.prompt.partner
    assert partner.original == plain.original
    assert set(partner.differing) - set(plain.differing) == {plain.original.roles["question_box"]}
    assert partner.changes_answer


def test_the_filter_keeps_the_first_correct_ones() -> None:
    pairs = [pair("target_box", number) for number in range(40)]
    candidates = torch.tensor([item.candidates for item in pairs])
    logits = candidate_logits(surgeon(), [item.original for item in pairs], candidates)
    right = [item.id for item, row in zip(pairs, logits, strict=True) if int(row.argmax()) == item.answer]
    first, second = logits.topk(2).values.unbind(dim=-1)  # (pair,)
    assert (first - second).min() > 2 * allowance(logits), "what is right would be a matter of rounding"
    assert 5 < len(right) < 35, "a filter that keeps all or nothing tests nothing"
    pool = iter(pairs)
    assert [item.id for item in correct_ones(surgeon(), pool, 5)] == right[:5]
    assert [item.id for item in correct_ones(surgeon(), iter(pairs), 99)] == right


def test_the_first_correct_ones_are_traced() -> None:
    """Traces `n` pairs, and the settings say how."""
    evidence = trace_design(surgeon(), encoder(), plan(), mode="target_box", n=4, layers=[1])
    pool = (pair("target_box", number) for number in range(4 * OVERSAMPLING))
    assert evidence.rows["prompt"].unique().tolist() == [item.id for item in correct_ones(surgeon(), pool, 4)]
    assert evidence.rows["prompt"].nunique() == 4
    settings = evidence.settings
    assert (settings["mode"], settings["query"], settings["changes_answer"]) == ("target_box", "same", True)


def test_a_mode_that_keeps_the_answer_is_refused_for_claims() -> None:
    common = {"mode": "query_box", "n": 2, "layers": [1]}
    with pytest.raises(UnchangedAnswer, match=r"'query_box'.*for_claims=False"):
        trace_design(surgeon(), encoder(), plan(), **common)
    evidence = trace_design(surgeon(), encoder(), plan(), for_claims=False, **common)
    assert evidence.settings["changes_answer"] is False
    with pytest.raises(ValueError, match="leaves the answer"):
        by_role(evidence)


def test_every_mode_of_equal_length_can_be_traced() -> None:
    for name, mode in TRACING_MODES.items():
        if mode.keeps_length:
            rows = trace(surgeon(), [pair(name)], mode=name, layers=[0]).rows
            assert rows["ran"].sum() == len(pair(name).differing)


def test_unusable_modes_are_refused() -> None:
    with pytest.raises(DesignError, match="shorter than the original"):
        counterfactual(plan(), 0, "no_swap")
    with pytest.raises(PromptError, match="no pairs"):
        trace(surgeon(), [], mode="m")
    traced = pair("target_box")
    with pytest.raises(PromptError, match="one prompt twice"):
        trace(surgeon(), [TracedPair(0, traced.original, traced.original, traced.candidates, 0, None)], mode="m")


def test_panels_name_modes_that_change_the_answer() -> None:
    for settings in PANELS.values():
        assert all(TRACING_MODES[mode].changes_answer for mode in (settings.mode, *settings.alternatives))


@pytest.mark.parametrize("distractor", ["before", "after"])
def test_five_boxes(distractor: str) -> None:
    """Five candidates, and the roles are those of the swap that matters, not of the distractor."""
    wide = plan(boxes=5, distractor=distractor)
    evidence = trace_design(surgeon(), encoder(), wide, mode="swap_only", n=2, layers=[0, 2])
    pairs = Stories(encoder()).draw(wide, range(2), ("tracing", "swap_only"))
    assert (pairs.boxes, pairs.distractor) == (5, distractor)
    differing = evidence.rows[evidence.rows["differs"]]
    assert set(differing["role"]) == {"swap_asked"}
    traced = traced_pair(encoder(), wide.tracing(0, "swap_only"))
    assert len(traced.candidates) == 5
    distracting = traced.original.prompt.story.operations[0 if distractor == "before" else 1]
    assert {distracting.first, distracting.second} == set(traced.original.prompt.story.boxes[-2:])
