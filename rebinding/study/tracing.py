"""The maps and the diagnostic of section 3, at the tokens that have a role."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.diagnostic import MODE, diagnose
from rebinding.experiments.tracing.mention import mention
from rebinding.experiments.tracing.modes import OVERSAMPLING, Pool, trace_design
from rebinding.experiments.tracing.request import FirstMention, OfMode, ReadoutDiagnostic, TracingMap
from rebinding.paper.procedure import TracingWay
from rebinding.study.bench import Bench, measures
from rebinding.world.boxes import labels_of
from rebinding.world.designs import Design, DesignName, ModeName, Split

WIDE = 5
HELD_OUT: dict[DesignName, Split] = {"published": "test", "partner_second": "test", "counterbalanced": "evaluation"}
"""The words that nothing is found on."""


def story(bench: Bench, name: DesignName, boxes: int, split: Split | None = None) -> Design:
    """Three boxes and a swap, or five and a swap that distracts."""
    distractor = {"distractor": "before"} if boxes == WIDE else {}
    return bench.design(name, boxes=boxes, split=split, **distractor)


def planned(bench: Bench, way: TracingWay, design: DesignName, boxes: int) -> Design:
    """The stories of a procedure; a design that somebody asked for stands in for its own."""
    if design in ("published", way.design):
        return story(bench, way.design, boxes, way.split)
    return story(bench, design, boxes, HELD_OUT[design])


def traced(
    bench: Bench, drawn: Design, mode: ModeName, roles: Sequence[str] | None, n: int, way: TracingWay
) -> TracingMap:
    """The map of one mode, at the tokens that have one of these roles, or at all; `context_box` is the label of every
    slot."""
    prompts = bench.draw(drawn, pool_of(bench, n, way), ("tracing", mode), n)
    return TracingMap(prompts, mode, way.rule, n, None if roles is None else tuple(roles))


def mentioned(
    bench: Bench, drawn: Design, mode: ModeName, context: str, swap: str, n: int, way: TracingWay
) -> FirstMention:
    """What a label adds in the context to one in the swap."""
    prompts = bench.draw(drawn, pool_of(bench, n, way), ("tracing", mode), n)
    return FirstMention(prompts, mode, way.rule, n, context, swap)


def diagnosed(bench: Bench, drawn: Design, n: int, way: TracingWay) -> ReadoutDiagnostic:
    """The readout diagnostic, on prompts whose swap names the asked box last.

    The swap's end stands before the question and cannot know it. If it helps the question about one box, that box is
    told by its place in the swap; so where the naming is crossed, the ids are those in which the asked box stands last,
    as it does in every published prompt.
    """
    ids = islice((number for number in count(start(bench, way)) if _asked_last(drawn, number)), n)
    return ReadoutDiagnostic(bench.draw(drawn, tuple(ids), ("questions", MODE)), way.rule)


def pool_of(bench: Bench, n: int, way: TracingWay) -> range:
    """The ids of which the first `n` are traced whose original is answered correctly."""
    return range(start(bench, way), start(bench, way) + OVERSAMPLING * n)


def start(bench: Bench, way: TracingWay) -> int:
    """The first id."""
    return bench.first if way.ids == "from_zero" else bench.evaluation


def _asked_last(drawn: Design, number: int) -> bool:
    """Whether an id is one that the diagnostic may use; where the naming is fixed every id is."""
    original = drawn.tracing(number, MODE).original
    assert original.operation is not None
    return drawn.name != "counterbalanced" or labels_of(original.operation)[-1] == original.question


def _pool(bench: Bench, asked: OfMode) -> Pool:
    return Pool(bench.plan(asked.prompts), asked.mode, asked.wanted, asked.prompts.ids[0], rule=asked.rule)


@measures(TracingMap)
def measure_map(bench: Bench, asked: TracingMap) -> Evidence:
    pool = _pool(bench, asked)
    return trace_design(
        bench.surgeon,
        bench.encoder,
        pool.design,
        mode=pool.mode,
        n=pool.n,
        first_id=pool.first_id,
        rule=pool.rule,
        roles=asked.roles,
        shelf=bench.shelf,
    )


@measures(FirstMention)
def measure_mention(bench: Bench, asked: FirstMention) -> Evidence:
    pool, context, swap = _pool(bench, asked), asked.context, asked.swap
    return mention(bench.surgeon, bench.encoder, pool, context=context, swap=swap, shelf=bench.shelf)


@measures(ReadoutDiagnostic)
def measure_diagnostic(bench: Bench, asked: ReadoutDiagnostic) -> Evidence:
    plan, ids = bench.plan(asked.prompts), asked.prompts.ids
    return diagnose(bench.surgeon, bench.encoder, plan, ids=ids, rule=asked.rule, shelf=bench.shelf)
