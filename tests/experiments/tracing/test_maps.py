"""Maps: from designs to traced pairs, which cells are run, and the prompts that are answered correctly.

The numbers are compared with full forwards in `tests/oracles/by_hand` and `tests/reference/test_exp1.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from claims.catalogue import claim
from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.request import EvidenceSource
from rebinding.evidence.store import Store
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tracing.maps import (
    TracedPair,
    UnchangedAnswer,
    candidate_logits,
    changing,
    correct_ones,
    patched_logits,
    trace,
    trace_design,
    traced_pair,
)
from rebinding.experiments.tracing.measure import mention
from rebinding.experiments.tracing.request import OVERSAMPLING, PATCHED, Answered, answered_ids, counterfactual
from rebinding.experiments.tracing.summary import by_role
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel
from rebinding.paper.procedure import builtin_procedure
from rebinding.report.figures.tracing import PANELS
from rebinding.study.engine import Engine, Session
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import TRACING_MODES, DesignError
from rebinding.task.prompts import PromptError
from rebinding.verdicts import GateFailed
from tests.close import allowance
from tests.experiments.setup import published_design as plan
from tests.experiments.setup import random_pairs, sentence_piece_model
from tests.experiments.setup import small_encoder as encoder
from tests.experiments.setup import small_surgeon as surgeon
from tests.families.models import tiny, tokens

MODE, MENTION = "target_box", "context_target_box_and_swap_query_box"
CONVENTIONS = builtin_procedure("published").tracing
N = 3


def pair(mode: str, number: int = 0, **options: object) -> TracedPair:
    return traced_pair(encoder(), counterfactual(plan(), number, mode, **options), CONVENTIONS.rule)


@pytest.fixture(scope="module")
def right_ids() -> list[int]:
    """The ids below 40 whose original the random model answers correctly."""
    pairs = [pair(MODE, number) for number in range(40)]
    candidates = torch.tensor([item.candidates for item in pairs])
    logits = candidate_logits(surgeon(), [item.original for item in pairs], candidates)
    first, second = logits.topk(2).values.unbind(dim=-1)  # (pair,)
    assert (first - second).min() > 2 * allowance(logits), "what is right would be a matter of rounding"
    right = [item.id for item, row in zip(pairs, logits, strict=True) if int(row.argmax()) == item.answer]
    assert 5 < len(right) < 35, "a filter that keeps all or nothing tests nothing"
    return right


def test_candidates_are_the_originals_objects_after_the_swap() -> None:
    traced = pair(MODE)
    prompt, decode = traced.original.prompt, encoder().tokenizer.decode
    objects = [prompt.story.state()[box] for box in prompt.story.boxes]
    assert objects != list(prompt.story.objects)
    assert [decode([token]).strip() for token in traced.candidates] == objects
    assert objects[traced.answer] == prompt.answer
    assert decode([traced.rival]).strip() == traced.counterfactual.prompt.answer
    assert traced.rival not in traced.candidates


def test_a_pair_says_whether_its_answer_changes() -> None:
    """The answer about a box that is not in the counterfactual changes, and is none of its words."""
    modes = {"swap_only": True, "query_box": False, "context_and_swap": True}
    assert {mode: pair(mode).changes_answer for mode in modes} == modes
    assert pair("context_and_swap").rival is None
    for panel in PANELS.values():
        assert all(TRACING_MODES[mode].changes_answer for mode in (panel.mode, *panel.alternatives))


def test_the_partner_query_asks_about_the_partner() -> None:
    plain, partner = pair("query_box"), pair("query_box", query="partner")
    assert partner.counterfactual.prompt.question == plain.original.prompt.partner
    assert partner.original == plain.original
    assert set(partner.differing) - set(plain.differing) == {plain.original.roles["question_box"]}
    assert partner.changes_answer


def test_the_first_correct_prompts_are_traced(right_ids: list[int]) -> None:
    """As many as there are, if there are too few; the settings say how."""
    for n in (5, 99):
        kept = correct_ones(surgeon(), (pair(MODE, number) for number in range(40)), n)
        assert [item.id for item in kept] == right_ids[:n]
    evidence = trace_design(surgeon(), encoder(), plan(), mode=MODE, n=4, layers=[1])
    assert evidence.rows["prompt"].unique().tolist() == right_ids[:4]
    settings = evidence.settings
    assert (settings["mode"], settings["query"], settings["changes_answer"]) == (MODE, "same", True)


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


def test_pairs_that_cannot_be_traced_are_refused() -> None:
    with pytest.raises(DesignError, match="shorter than the original"):
        counterfactual(plan(), 0, "no_swap")
    with pytest.raises(PromptError, match="no pairs"):
        trace(surgeon(), [], mode="m")
    traced = pair(MODE)
    with pytest.raises(PromptError, match="one prompt twice"):
        trace(surgeon(), [TracedPair(0, traced.original, traced.original, traced.candidates, 0, None)], mode="m")


@pytest.mark.parametrize("distractor", ["before", "after"])
def test_roles_are_those_of_the_swap_that_matters(distractor: str) -> None:
    """Five boxes: five candidates, and a second swap that distracts."""
    wide = plan(boxes=5, distractor=distractor)
    evidence = trace_design(surgeon(), encoder(), wide, mode="swap_only", n=2, layers=[0, 2])
    pairs = Stories(encoder()).draw(wide, range(2), ("tracing", "swap_only"))
    assert (pairs.boxes, pairs.distractor) == (5, distractor)
    assert set(evidence.rows.loc[evidence.rows["differs"], "role"]) == {"swap_asked"}
    traced = traced_pair(encoder(), wide.tracing(0, "swap_only"))
    assert len(traced.candidates) == 5
    story = traced.original.prompt.story
    distracting = story.operations[0 if distractor == "before" else 1]
    assert {distracting.first, distracting.second} == set(story.boxes[-2:])


def test_only_cells_that_can_change_are_run() -> None:
    """In the first layer the tokens that differ, above it all tokens from the first of them on. The others change
    nothing."""
    model = tiny("llama")
    pairs = random_pairs(tokens("llama", n=4), differing=(6, 8))
    surgeon = TorchSurgeon(model, derive(model))
    layers, every_token = range(surgeon.anatomy.n_layers), range(len(pairs[0].original))
    sparse = changing(pairs, layers, every_token)
    for of_pair in sparse.int().tolist():
        assert of_pair[0] == [int(token in (6, 8)) for token in every_token]
        assert of_pair[1:] == [[int(token >= 6) for token in every_token]] * (len(layers) - 1)
    cells = (sparse, torch.ones_like(sparse))
    run, run_all = (patched_logits(surgeon, pairs, part, layers=layers, tokens=every_token).logits for part in cells)
    torch.testing.assert_close(run, run_all, rtol=0, atol=2 * allowance(run_all.numpy(), floor=1.0))


def test_a_part_of_a_map_equals_these_cells_of_the_full_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some layers and tokens, in any order, and in blocks of prompts."""
    model = tiny("gemma2")
    pairs = random_pairs(tokens("gemma2", n=5), differing=(3,))
    surgeon = TorchSurgeon(model, derive(model))
    full = trace(surgeon, pairs, mode="test").rows
    monkeypatch.setattr(TorchSurgeon, "prompts_at_once", lambda surgeon, length: 2)
    part = trace(surgeon, pairs, mode="test", layers=[3, 1], tokens=[12, 5]).rows
    merged = part.merge(full, on=["prompt", "layer", "token"], suffixes=("", "_whole"))
    assert len(part) == len(merged) == 5 * 2 * 2
    close = 2 * allowance(full["answer_logit"])
    np.testing.assert_allclose(merged["margin"], merged["margin_whole"], rtol=0, atol=close)


def test_a_mention_is_patched_at_every_layer_but_the_first() -> None:
    """There a patch of both labels is the original run."""
    pairs = (traced_pair(encoder(), counterfactual(plan(), number, MENTION), CONVENTIONS.rule) for number in range(12))
    evidence = mention(
        surgeon(), correct_ones(surgeon(), pairs, 3), mode=MENTION, context="context_partner", swap="swap_asked"
    )
    cells = evidence.rows.groupby(["patched", "layer"]).size()
    assert set(cells.index) == {(name, layer) for name in PATCHED for layer in range(1, surgeon().anatomy.n_layers)}
    assert (cells == 3).all()
    assert (evidence.rows["relative_change"] > 0).all()
    assert (evidence.settings["mode"], evidence.settings["roles"]) == (MENTION, ["context_partner", "swap_asked"])


@pytest.mark.parametrize("n", [1, 5, 10])
def test_no_more_prompts_are_asked_about_than_needed(n: int, right_ids: list[int]) -> None:
    """Tests `n` ids at a time, until there are enough, or four times as many were tested."""
    bench, requests = Workbench(sentence_piece_model()), []

    def get_evidence(request: Answered) -> Evidence:
        requests.append(request)
        return bench.get(request)

    ids = answered_ids(bench.prompts, plan(), MODE, n, CONVENTIONS, get_evidence)
    assert ids == [number for number in right_ids if number < OVERSAMPLING * n][:n]
    last = ids[-1] if len(ids) == n else OVERSAMPLING * n - 1
    assert [number for request in requests for number in request.prompts.ids] == list(range(n * (last // n + 1)))
    assert {(request.rule, request.prompts.pairing) for request in requests} == {(CONVENTIONS.rule, ("tracing", MODE))}


@dataclass(frozen=True)
class AnswersAsTold:
    """A source that says which originals are answered correctly, and leaves all else to another."""

    source: EvidenceSource
    is_right: Callable[[int], bool]

    def get(self, request: Request) -> Evidence:
        evidence = self.source.get(request)
        if not isinstance(request, Answered):
            return evidence
        return replace(evidence, rows=evidence.rows.assign(right=evidence.rows["prompt"].map(self.is_right)))


@dataclass(frozen=True)
class EngineWithAnswers(Engine):
    """Sessions whose model answers as `is_right` says."""

    is_right: Callable[[int], bool]

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        session = super().session(loaded_model, store, skip_prompts=skip_prompts)
        return replace(session, source=AnswersAsTold(session.source, self.is_right))


def make_study(is_right: Callable[[int], bool]) -> Study:
    model = parse_model("planted:pointer")
    settings = Settings((model,), samples=N, device="cpu", engine=EngineWithAnswers(is_right))
    return Study.of(ModelUnderTest(model, settings))


def test_claims_trace_the_prompts_that_are_answered() -> None:
    """Every second prompt: each experiment is on those."""
    study, emerge = make_study(lambda number: number % 2 == 1), claim("tracing.boxes_emerge_after_swap")
    for evidence in (
        study.trace_residuals(emerge, MODE, "readout"),
        study.patch_mention(emerge, MENTION, "context_partner", "swap_asked"),
    ):
        assert evidence.rows["prompt"].unique().tolist() == [1, 3, 5]
        request = study.log.request_of(evidence)
        assert isinstance(request, OnPrompts)
        assert request.prompts.ids == (1, 3, 5)


def test_too_few_answered_prompts_make_a_claim_invalid() -> None:
    """Two right ones among twelve: nothing is traced."""
    study = make_study(lambda number: number in (1, 7))
    with pytest.raises(GateFailed, match="the evidence has 2 units, the claim declares 3") as failed:
        study.trace_residuals(claim("tracing.boxes_emerge_after_swap"), MODE, "readout")
    assert failed.value.gate.name == "declared_n"
    tested = [number for use in study.log.used for number in use.request.prompts.ids]
    assert tested == list(range(OVERSAMPLING * N))
    assert {use.request.KIND.name for use in study.log.used} == {"answered"}
