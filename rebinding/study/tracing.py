"""The maps and the diagnostic of section 3, at the tokens that have a role."""

from __future__ import annotations

from collections.abc import Sequence

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.diagnostic import MODE, diagnose
from rebinding.experiments.tracing.modes import OVERSAMPLING, trace_design
from rebinding.experiments.tracing.request import ReadoutDiagnostic, TracingMap
from rebinding.study.bench import EVALUATION, Bench, measures
from rebinding.world.designs import Design, DesignName, ModeName

WIDE = 5


def story(bench: Bench, name: DesignName, boxes: int) -> Design:
    """Three boxes and a swap, or five and a swap that distracts."""
    return bench.design(name, boxes=boxes, distractor="before") if boxes == WIDE else bench.design(name, boxes=boxes)


def traced(bench: Bench, drawn: Design, mode: ModeName, roles: Sequence[str], n: int) -> TracingMap:
    """The map of one mode, at the tokens that have one of these roles; `context_box` is the label of every slot."""
    pool = range(EVALUATION, EVALUATION + OVERSAMPLING * n)
    return TracingMap(bench.draw(drawn, pool, ("tracing", mode), n), mode, tuple(roles), n)


@measures(TracingMap)
def measure_map(bench: Bench, asked: TracingMap) -> Evidence:
    return trace_design(
        bench.surgeon,
        bench.encoder,
        bench.plan(asked.prompts),
        mode=asked.mode,
        n=asked.wanted,
        first_id=asked.prompts.ids[0],
        roles=asked.roles,
        shelf=bench.shelf,
    )


def diagnosed(bench: Bench, drawn: Design, n: int) -> ReadoutDiagnostic:
    """The readout diagnostic."""
    return ReadoutDiagnostic(bench.draw(drawn, range(EVALUATION, EVALUATION + n), ("questions", MODE)))


@measures(ReadoutDiagnostic)
def measure_diagnostic(bench: Bench, asked: ReadoutDiagnostic) -> Evidence:
    first, plan = asked.prompts.ids[0], bench.plan(asked.prompts)
    return diagnose(bench.surgeon, bench.encoder, plan, n=asked.n, first_id=first, shelf=bench.shelf)
