"""Which kind of request is computed again by what; and all of it, on a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch

from rebinding.evidence import Request
from rebinding.experiments.attention.looks import Looks
from rebinding.experiments.binding.request import Exchange, MeanVectors, Shifts
from rebinding.experiments.circuit.request import (
    Ability,
    Ablation,
    Contributions,
    Elsewhere,
    Knockout,
    Means,
    Paths,
    Pruning,
    Stream,
)
from rebinding.experiments.roles.request import Interchange
from rebinding.experiments.tracing.request import FirstMention, OfMode, ReadoutDiagnostic, TracingMap
from rebinding.study.bench import Bench
from rebinding.study.binding import SLOTS
from rebinding.study.floors import Floors
from rebinding.study.replays import Replays
from rebinding.study.tracing import WIDE
from tests.by_hand.compare import Compared, Recompute, compared, drawn
from tests.by_hand.judged import Judged
from tests.by_hand.of_binding import of_exchange, of_shifts, vectors_of
from tests.by_hand.of_circuits import (
    means_of,
    of_ability,
    of_ablation,
    of_contributions,
    of_knockout,
    of_pruning,
    of_stream,
)
from tests.by_hand.of_paths import of_paths
from tests.by_hand.of_roles import of_interchange, of_looks
from tests.by_hand.of_tracing import kept, of_diagnostic, of_map, of_mention
from tests.by_hand.plain import Plain
from tests.close import ROUNDING

BY_HAND: Mapping[type[Request], Recompute] = MappingProxyType(
    {
        TracingMap: of_map,
        FirstMention: of_mention,
        ReadoutDiagnostic: of_diagnostic,
        Paths: of_paths,
        Ability: of_ability,
        Ablation: of_ablation,
        Elsewhere: of_ablation,
        Knockout: of_knockout,
        Contributions: of_contributions,
        Pruning: of_pruning,
        Stream: of_stream,
        Looks: of_looks,
        Interchange: of_interchange,
        Shifts: of_shifts,
        Exchange: of_exchange,
    }
)


GATES: frozenset[type[Request]] = frozenset({Replays, Floors})
"""What no row rests on: comparisons of ours with ours or with the library's own forward, and asked by gates alone."""


@dataclass(frozen=True, eq=False)
class ByHand:
    """What was judged, and the same weights as the library runs them; a plant of five boxes is a model of its own."""

    judged: Judged

    @cached_property
    def plain(self) -> Plain:
        return Plain(self.judged.case.bench.subject.model)

    @cached_property
    def wide(self) -> Plain:
        case = self.judged.case
        return self.plain if case.plant is None else Plain(case.wide_bench.subject.model)

    def of(self, request: Request) -> tuple[Plain, Bench]:
        """The model and the prompts of a request."""
        case = self.judged.case
        is_wide = getattr(getattr(request, "prompts", None), "boxes", SLOTS) == WIDE
        return (self.wide, case.wide_bench) if is_wide else (self.plain, case.bench)


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
    evidence, (plain, bench) = by_hand.judged.known[request].rows.reset_index(drop=True), by_hand.of(request)
    some = drawn(evidence, count, request)
    some.attrs["all"] = evidence
    found = compared(some, BY_HAND[type(request)](plain, bench, request, some))
    if isinstance(request, OfMode):
        assert sorted(evidence["prompt"].unique()) == kept(plain, bench, request), "other prompts than the right ones"
    return found


def averages(by_hand: ByHand) -> dict[str, float]:
    """The largest difference of every mean, as a share of what rounding allows of its largest entry."""
    found: dict[str, float] = {}
    plain, judged = by_hand.plain, by_hand.judged
    for request, told in judged.case.bench.tensors.items():
        if isinstance(request, MeanVectors):
            want = vars(vectors_of(plain, judged.case.bench, request))
        elif isinstance(request, Means):
            means = means_of(plain, judged.case.bench, request)
            split = [one.unflatten(-1, (plain.heads, plain.dim)).transpose(0, 1) for one in means]
            want = {str(layer): one for layer, one in enumerate(split)}  # (head, token, head_dim)
        else:
            continue
        pairs = [(told.tensors[name], value) for name, value in want.items()]
        largest = max(float(value.abs().max()) for _, value in pairs)
        worst = max(float((got.float() - value).abs().max()) for got, value in pairs)
        found[request.label] = worst / (ROUNDING * largest)
    assert torch.tensor([*found.values()]).isfinite().all()
    return found
