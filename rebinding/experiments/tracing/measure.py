"""Measure what section 3 requests."""

from __future__ import annotations

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.diagnostic import Question, diagnose_questions
from rebinding.experiments.tracing.maps import TracedPair, trace
from rebinding.experiments.tracing.mention import mention
from rebinding.experiments.tracing.modes import are_right, check_changed, scored_pair
from rebinding.experiments.tracing.request import (
    ANSWERED,
    DIAGNOSTIC_MODE,
    Answered,
    FirstMention,
    InBlocks,
    ReadoutDiagnostic,
    TracingMap,
    pairs_by_question,
)
from rebinding.experiments.workbench import Workbench, measures
from rebinding.task.designs import Pair


def _pairs(bench: Workbench, request: InBlocks) -> list[TracedPair]:
    """The pairs of a request, as they are scored."""
    drawn, encoder = bench.prompts.drawn(request.prompts), bench.prompts.encoder
    sides = zip(drawn.items, drawn.prompts, drawn.others, strict=True)
    return [
        scored_pair(encoder, item, own, other, request.rule) for item, own, other in sides if isinstance(item, Pair)
    ]


@measures(Answered)
def measure_answered(bench: Workbench, request: Answered) -> Evidence:
    right = are_right(bench.surgeon, _pairs(bench, request))
    return ANSWERED.evidence(pd.DataFrame({"prompt": request.prompts.ids, "right": right}), {})


@measures(TracingMap)
def measure_map(bench: Workbench, request: TracingMap) -> Evidence:
    pairs = _pairs(bench, request)
    check_changed(request.mode, pairs)
    return trace(bench.surgeon, pairs, mode=request.mode, roles=request.roles)


@measures(FirstMention)
def measure_mention(bench: Workbench, request: FirstMention) -> Evidence:
    pairs = _pairs(bench, request)
    check_changed(request.mode, pairs)
    return mention(bench.surgeon, pairs, mode=request.mode, context=request.context, swap=request.swap)


@measures(ReadoutDiagnostic)
def measure_diagnostic(bench: Workbench, request: ReadoutDiagnostic) -> Evidence:
    """What the swap does with a box that is asked about follows from the pair that the questions were made of."""
    plan = bench.prompts.plan(request.prompts)
    names = [
        name for number in request.prompts.ids for name, _ in pairs_by_question(plan.tracing(number, DIAGNOSTIC_MODE))
    ]
    questions = [Question(name, pair) for name, pair in zip(names, _pairs(bench, request), strict=True)]
    return diagnose_questions(bench.surgeon, questions)
