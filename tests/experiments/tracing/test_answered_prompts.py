"""Claims trace the first prompts whose original is answered correctly; too few of them make a claim invalid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from claims.catalogue import claim
from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.evidence.request import EvidenceSource
from rebinding.evidence.store import Store
from rebinding.experiments.tracing.maps import candidate_logits, traced_pair
from rebinding.experiments.tracing.request import OVERSAMPLING, Answered, answered_ids, counterfactual
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel
from rebinding.paper.procedure import builtin_procedure
from rebinding.study.engine import Engine, Session
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed
from tests.close import allowance
from tests.experiments.tracing.small_model import encoder, loaded_model, plan, surgeon

EMERGE = claim("tracing.boxes_emerge_after_swap")
MODE = "target_box"
CONVENTIONS = builtin_procedure("published").tracing
N = 3


@pytest.fixture(scope="module")
def right_ids() -> list[int]:
    """The ids below 40 whose original the random model answers correctly."""
    pairs = [traced_pair(encoder(), counterfactual(plan(), number, MODE), CONVENTIONS.rule) for number in range(40)]
    candidates = torch.tensor([pair.candidates for pair in pairs])
    logits = candidate_logits(surgeon(), [pair.original for pair in pairs], candidates)
    first, second = logits.topk(2).values.unbind(dim=-1)  # (pair,)
    assert (first - second).min() > 2 * allowance(logits), "what is right would be a matter of rounding"
    right = [pair.id for pair, row in zip(pairs, logits, strict=True) if int(row.argmax()) == pair.answer]
    assert 5 < len(right) < 35, "a filter that keeps all or nothing tests nothing"
    return right


@pytest.mark.parametrize("n", [1, 2, 5, 10])
def test_finds_the_first_correct_ids_and_tests_no_more_than_needed(n: int, right_ids: list[int]) -> None:
    """Tests `n` ids at a time, until there are enough, or four times as many were tested."""
    bench, requests = Workbench(loaded_model()), []

    def get_evidence(request: Answered) -> Evidence:
        requests.append(request)
        return bench.get(request)

    ids = answered_ids(bench.prompts, plan(), MODE, n, CONVENTIONS, get_evidence)
    reachable = [number for number in right_ids if number < OVERSAMPLING * n]
    assert ids == reachable[:n]
    last = ids[-1] if len(ids) == n else OVERSAMPLING * n - 1
    assert [number for request in requests for number in request.prompts.ids] == list(range(n * (last // n + 1)))
    assert {(request.rule, request.prompts.pairing) for request in requests} == {(CONVENTIONS.rule, ("tracing", MODE))}


@dataclass(frozen=True)
class Answers:
    """A source that says which originals are answered correctly, and leaves all else to another."""

    source: EvidenceSource
    is_right: Callable[[int], bool]

    def get(self, request: Request) -> Evidence:
        evidence = self.source.get(request)
        if not isinstance(request, Answered):
            return evidence
        return replace(evidence, rows=evidence.rows.assign(right=evidence.rows["prompt"].map(self.is_right)))


@dataclass(frozen=True)
class Answering(Engine):
    """Sessions whose model answers as `is_right` says."""

    is_right: Callable[[int], bool]

    def session(self, loaded_model: LoadedModel, store: Store | None, *, skip_prompts: int = 0) -> Session:
        session = super().session(loaded_model, store, skip_prompts=skip_prompts)
        return replace(session, source=Answers(session.source, self.is_right))


def make_study(is_right: Callable[[int], bool]) -> Study:
    model = parse_model("planted:pointer")
    return Study.of(ModelUnderTest(model, Settings((model,), samples=N, device="cpu", engine=Answering(is_right))))


def test_traced_prompts_are_answered() -> None:
    """Every second prompt: each experiment is on those."""
    study = make_study(lambda number: number % 2 == 1)
    for evidence in (
        study.trace_residuals(EMERGE, MODE, "readout"),
        study.patch_mention(
            claim("tracing.boxes_emerge_after_swap"),
            "context_target_box_and_swap_query_box",
            "context_partner",
            "swap_asked",
        ),
    ):
        assert evidence.rows["prompt"].unique().tolist() == [1, 3, 5]
        request = study.log.request_of(evidence)
        assert isinstance(request, OnPrompts)
        assert request.prompts.ids == (1, 3, 5)


def test_too_few_make_a_claim_invalid() -> None:
    """Two right ones among twelve: nothing is traced."""
    study = make_study(lambda number: number in (1, 7))
    with pytest.raises(GateFailed) as failed:
        study.trace_residuals(EMERGE, MODE, "readout")
    assert failed.value.gate.name == "declared_n"
    assert "the evidence has 2 units, the claim declares 3" in str(failed.value)
    tested = [number for use in study.log.used for number in use.request.prompts.ids]
    assert tested == list(range(OVERSAMPLING * N))
    assert {use.request.KIND.name for use in study.log.used} == {"answered"}
