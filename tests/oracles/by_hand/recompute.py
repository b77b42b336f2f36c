"""Which kind of request is computed again by what; and all of it, on a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import torch

from rebinding.evidence import Request
from rebinding.experiments.attention.request import AttentionToRoles
from rebinding.experiments.binding.request import SLOTS, Exchange, MeanVectors, Shifts
from rebinding.experiments.circuit.request import Ablation, Contributions, Knockout, Means, Pruning, Stream
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.prompts import EVALUATION_ID, Prompts
from rebinding.experiments.roles.request import Interchange, RandomInterchange
from rebinding.experiments.static.request import OtherStories
from rebinding.experiments.swap_labels.request import LabelExchange, LabelVectors
from rebinding.experiments.tracing.request import WIDE, Answered, FirstMention, OfMode, ReadoutDiagnostic, TracingMap
from rebinding.experiments.unedited.request import Ability, Floors, Replays
from rebinding.experiments.workbench import Workbench, tensor_requests
from tests.close import ROUNDING
from tests.oracles.by_hand.binding_evidence import of_exchange, of_shifts, vectors_of
from tests.oracles.by_hand.circuit_evidence import (
    means_of,
    of_ability,
    of_ablation,
    of_contributions,
    of_knockout,
    of_pruning,
    of_stream,
)
from tests.oracles.by_hand.compare import Compared, Recompute, compared, drawn
from tests.oracles.by_hand.judgements import Judged
from tests.oracles.by_hand.label_evidence import label_vectors_of, of_label_exchange
from tests.oracles.by_hand.path_evidence import of_paths
from tests.oracles.by_hand.plain_model import Plain
from tests.oracles.by_hand.role_evidence import of_interchange, of_looks, of_random_groups
from tests.oracles.by_hand.tracing_evidence import of_answered, of_diagnostic, of_map, of_mention, right_ids

BY_HAND: Mapping[type[Request], Recompute] = MappingProxyType(
    {
        Answered: of_answered,
        TracingMap: of_map,
        FirstMention: of_mention,
        ReadoutDiagnostic: of_diagnostic,
        Paths: of_paths,
        Ability: of_ability,
        Ablation: of_ablation,
        OtherStories: of_ablation,
        Knockout: of_knockout,
        Contributions: of_contributions,
        Pruning: of_pruning,
        Stream: of_stream,
        AttentionToRoles: of_looks,
        Interchange: of_interchange,
        RandomInterchange: of_random_groups,
        Shifts: of_shifts,
        Exchange: of_exchange,
        LabelExchange: of_label_exchange,
    }
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

    def of(self, request: Request) -> tuple[Plain, Prompts]:
        """The model and the prompts of a request."""
        case = self.judged.case
        is_wide = getattr(getattr(request, "prompts", None), "boxes", SLOTS) == WIDE
        return (self.wide, case.wide_session.prompts) if is_wide else (self.plain, case.session.prompts)


def recomputed(by_hand: ByHand, kind: type[Request], rows: int) -> Compared:
    """So many rows of a kind, shared out among its requests: at least one of each."""
    asked = [one for one in by_hand.judged.known if type(one) is kind]
    each = max(1, rows // max(1, len(asked)))
    parts = [_of_request(by_hand, one, each) for one in asked]
    wrong = tuple(text for one in parts for text in one.wrong)
    return Compared(
        sum(one.rows for one in parts),
        max((one.worst for one in parts), default=0.0),
        sum(one.undecided for one in parts),
        wrong,
    )


def _of_request(by_hand: ByHand, request: Request, count: int) -> Compared:
    evidence, (plain, prompts) = by_hand.judged.known[request].rows.reset_index(drop=True), by_hand.of(request)
    some = drawn(evidence, count, request)
    some.attrs["all"] = evidence
    found = compared(some, BY_HAND[type(request)](plain, prompts, request, some))
    if isinstance(request, OfMode):
        right = right_ids(plain, prompts, request, _candidates(by_hand.judged, request))
        assert sorted(evidence["prompt"].unique()) == right, "other prompts than the right ones"
    return found


def _candidates(judged: Judged, request: OfMode) -> list[int]:
    """The ids among which the prompts of a request were chosen, in order: one after the other from the first on."""
    pools = [one for one in judged.known if isinstance(one, Answered) and _is_pool(one, request)]
    ids = sorted({number for one in pools for number in one.prompts.ids})
    assert ids == list(range(START[request.rule], START[request.rule] + len(ids)))
    return ids


def _is_pool(pool: Answered, request: OfMode) -> bool:
    """Whether prompts are of the same kind."""
    ids, tokens = request.prompts.ids, request.prompts.tokens
    return pool.rule == request.rule and replace(pool.prompts, ids=ids, tokens=tokens) == request.prompts


def averages(by_hand: ByHand) -> dict[str, float]:
    """The largest difference of every mean, as a share of what rounding allows of its largest entry."""
    found: dict[str, float] = {}
    plain, session = by_hand.plain, by_hand.judged.case.session
    assert isinstance(session.source, Workbench)
    for request in dict.fromkeys(inner for outer in by_hand.judged.known for inner in tensor_requests(outer)):
        means_here = session.source.tensors(request)
        if isinstance(request, MeanVectors):
            want = vars(vectors_of(plain, session.prompts, request))
        elif isinstance(request, LabelVectors):
            want = {"k": label_vectors_of(plain, session.prompts, request)}
        elif isinstance(request, Means):
            means = means_of(plain, session.prompts, request)
            split = [one.unflatten(-1, (plain.heads, plain.dim)).transpose(0, 1) for one in means]
            want = {str(layer): one for layer, one in enumerate(split)}  # (head, token, head_dim)
        else:
            continue
        pairs = [(means_here[name], value) for name, value in want.items()]
        largest = max(float(value.abs().max()) for _, value in pairs)
        worst = max(float((got.float() - value).abs().max()) for got, value in pairs)
        found[request.label] = worst / (ROUNDING * largest)
    assert torch.tensor([*found.values()]).isfinite().all()
    return found
