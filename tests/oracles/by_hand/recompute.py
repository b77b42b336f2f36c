"""The function that recomputes each kind of request, and its comparison on a sample of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeGuard

import torch

from rebinding.evidence import Request
from rebinding.experiments.ablation import Means
from rebinding.experiments.binding.request import SLOTS, MeanVectors
from rebinding.experiments.binding.swap_labels import LabelVectors
from rebinding.experiments.prompts import EVALUATION_ID, Stories
from rebinding.experiments.tracing.request import WIDE, Answered, OfMode
from rebinding.experiments.unedited import Floors, Replays
from rebinding.experiments.workbench import Workbench, tensor_requests
from tests.close import ROUNDING
from tests.oracles.by_hand import binding_evidence, circuit_evidence, role_evidence, tracing_evidence
from tests.oracles.by_hand.compare import Compared, EvidenceRow, Recompute, compared, sample_rows
from tests.oracles.by_hand.judgements import Judged
from tests.reference.naive.plain_model import Plain

BY_HAND: Mapping[type[Request], Recompute] = MappingProxyType(
    tracing_evidence.BY_HAND | circuit_evidence.BY_HAND | role_evidence.BY_HAND | binding_evidence.BY_HAND
)
GATES: frozenset[type[Request]] = frozenset({Replays, Floors})
"""What no row rests on: comparisons of ours with ours or with the library's own forward, and asked by gates alone."""
START: Mapping[str, int] = MappingProxyType({"exp1_spaced": 0, "continuation": EVALUATION_ID})
"""The first id that is traced, by the rule of the published and of the controlled procedure."""


@dataclass(frozen=True, eq=False)
class ByHand:
    """What was judged, and the same weights as the library runs them; a plant of five boxes is a model of its own."""

    judged: Judged

    @cached_property
    def plain(self) -> Plain:
        return Plain(self.judged.case.loaded_model.model)

    @cached_property
    def wide(self) -> Plain:
        case = self.judged.case
        return self.plain if case.plant is None else Plain(case.wide_session.loaded_model.model)

    def of(self, request: Request) -> tuple[Plain, Stories]:
        """The model and the prompts of a request."""
        case = self.judged.case
        is_wide = getattr(getattr(request, "prompts", None), "boxes", SLOTS) == WIDE
        return (self.wide, case.wide_session.prompts) if is_wide else (self.plain, case.session.prompts)


def recomputed(by_hand: ByHand, kind: type[Request], rows: int) -> Compared:
    """So many rows of a kind, shared out among its requests: at least one of each."""
    requests = [request for request in by_hand.judged.evidence_by_request if type(request) is kind]
    count = max(1, rows // max(1, len(requests)))
    return sum((_compare_request(by_hand, request, count) for request in requests), Compared())


def _compare_request(by_hand: ByHand, request: Request, count: int) -> Compared:
    evidence = by_hand.judged.evidence_by_request[request].rows.reset_index(drop=True)
    plain, prompts = by_hand.of(request)
    if isinstance(request, OfMode):
        right = tracing_evidence.right_ids(plain, prompts, request, _candidates(by_hand.judged, request))
        assert sorted(evidence["prompt"].unique()) == right, "other prompts than the right ones"
    rows = (EvidenceRow(plain, prompts, request, evidence, index) for index in sample_rows(evidence, count, request))
    return sum((compared(row, BY_HAND[type(request)]) for row in rows), Compared())


def _candidates(judged: Judged, request: OfMode) -> list[int]:
    """The ids among which the prompts of a request were chosen, in order: one after the other from the first on."""
    ids = {number for pool in judged.evidence_by_request if _is_pool(pool, request) for number in pool.prompts.ids}
    assert sorted(ids) == list(range(START[request.rule], START[request.rule] + len(ids)))
    return sorted(ids)


def _is_pool(pool: Request, request: OfMode) -> TypeGuard[Answered]:
    """Whether it asks which prompts of the same kind are answered."""
    if not isinstance(pool, Answered) or pool.rule != request.rule:
        return False
    return replace(pool.prompts, ids=request.prompts.ids, tokens=request.prompts.tokens) == request.prompts


def averages(by_hand: ByHand) -> dict[str, float]:
    """The largest difference of every mean, as a share of what rounding allows of its largest entry."""
    differences: dict[str, float] = {}
    plain, session = by_hand.plain, by_hand.judged.case.session
    assert isinstance(session.source, Workbench)
    for request in dict.fromkeys(
        inner for outer in by_hand.judged.evidence_by_request for inner in tensor_requests(outer)
    ):
        means_here = session.source.tensors(request)
        if isinstance(request, MeanVectors):
            expected = vars(binding_evidence.recompute_vectors(plain, session.prompts, request))
        elif isinstance(request, LabelVectors):
            expected = {"k": binding_evidence.recompute_label_vectors(plain, session.prompts, request)}
        elif isinstance(request, Means):
            means = circuit_evidence.recompute_means(plain, session.prompts, request)
            split = [mean.unflatten(-1, (plain.heads, plain.dim)).transpose(0, 1) for mean in means]
            expected = {str(layer): layer_means for layer, layer_means in enumerate(split)}  # (head, token, head_dim)
        else:
            continue
        pairs = [(means_here[name], value) for name, value in expected.items()]
        largest = max(float(value.abs().max()) for _, value in pairs)
        worst = max(float((actual.float() - value).abs().max()) for actual, value in pairs)
        differences[request.label] = worst / (ROUNDING * largest)
    assert torch.tensor([*differences.values()]).isfinite().all()
    return differences
