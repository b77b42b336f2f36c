"""Measure the requests of section 3."""

from __future__ import annotations

import pandas as pd

from rebinding.evidence import Evidence
from rebinding.experiments.tracing.diagnostic import Question, diagnose_questions, windows, windows_of_rules
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
    StoredState,
    TracingMap,
    pairs_by_question,
)
from rebinding.experiments.tracing.stored import measure_stored
from rebinding.experiments.workbench import Workbench, measures
from rebinding.task.designs import Pair


def _pairs(bench: Workbench, request: InBlocks) -> list[TracedPair]:
    """The scored pairs of a request."""
    encoded, encoder = bench.prompts.encode(request.prompts), bench.prompts.encoder
    sides = zip(encoded.items, encoded.prompts, encoded.counterfactuals, strict=True)
    return [
        scored_pair(encoder, item, original, counterfactual, request.rule)
        for item, original, counterfactual in sides
        if isinstance(item, Pair)
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
    """The name of a question (the part of its box in the swap) follows from the pair of the design."""
    stories = bench.prompts.plan(request.prompts)
    names = [
        name
        for number in request.prompts.ids
        for name, _ in pairs_by_question(stories.tracing(number, DIAGNOSTIC_MODE))
    ]
    questions = [Question(name, pair) for name, pair in zip(names, _pairs(bench, request), strict=True)]
    spans = (windows if request.all_windows else windows_of_rules)(bench.surgeon.anatomy.n_layers)
    return diagnose_questions(bench.surgeon, questions, spans)


@measures(StoredState)
def measure_stored_state(bench: Workbench, request: StoredState) -> Evidence:
    return measure_stored(bench.surgeon, _pairs(bench, request))
