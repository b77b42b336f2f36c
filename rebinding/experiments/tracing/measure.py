"""Measure the requests of section 3: maps, the first mention of a box, the readout diagnostic, stored state.

**The readout diagnostic.** Is the updated state ready after the swap sentence, or is it resolved at the readout?

The direction is opposite to tracing: residuals of the *counterfactual* are written into the run of the *original*, at
the token that ends the swap sentence or at the readout, with a question about every box in turn. In the pair the swap
names the remaining box instead of the partner; of all published edits only this one changes the answers of all three
boxes. If the swap's full stop held the state, a patch there would change the answer to every question as a patch at the
readout does.

A patch of one layer is at its input. A patch of a window is at the input of each of its layers, so that everything that
later tokens read from this token within the window is counterfactual.

**The first mention.** What does the first mention of a box add? Patch a box label in the swap alone, and together with
the one in the context.

In the counterfactual both mentions of a box are edited. A patch of the context label alone is not run: the swap
sentence would still name another box, so a lost answer would say nothing about the context. At each layer, one run
patches the swap label and one both labels. The context adds `both` minus `swap`: nothing, if the model takes what it
needs from the swap sentence.

At the input of the first layer a patch of both labels is the original run itself, whatever the model does; so layers
start at the second.

**Stored state.** Does a token before the question's label hold the updated objects?

All tokens of a span are taken at once, at the input of every layer, from a second prompt. If they held the state, the
answer would become the second prompt's object. There are two second prompts: one with the same swap and other objects
in all boxes, and one with the same objects and another swap. From the swap to the token before the asked label, the
latter is the second prompt itself from there on, so the patch must change the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.tokens import BLOCK, blocks, positions, prompt_blocks, relative_change, token_batch
from rebinding.experiments.tracing.maps import (
    TracedPair,
    are_right,
    candidate_tokens,
    check_changed,
    check_pairs,
    scored_pair,
    scores,
    trace,
    traced_pair,
)
from rebinding.experiments.tracing.request import (
    ANSWERED,
    DIAGNOSTIC,
    DIAGNOSTIC_MODE,
    DONORS,
    MENTION,
    PATCHED,
    SITES,
    STORED_STATE,
    Answered,
    FirstMention,
    InBlocks,
    ReadoutDiagnostic,
    SpanName,
    StoredState,
    TracingMap,
    Window,
    pairs_by_question,
    windows,
    windows_of_rules,
)
from rebinding.surgery import Edit, LogitsOf, Read, RecordedRun, Surgeon
from rebinding.task.designs import Design, Pair
from rebinding.task.prompts import AnswerRule, Encoder, PromptError, TokenizedPrompt

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


QUESTIONS = 3 * BLOCK
"""The fewest questions that are run together: three for each prompt of a block."""


@dataclass(frozen=True)
class Question:
    """A pair with a question about one box, named by the box's part in the swap: asked, partner or remaining."""

    name: str
    pair: TracedPair


def diagnose(
    surgeon: Surgeon,
    encoder: Encoder,
    design: Design,
    *,
    ids: Sequence[int],
    width: int | None = None,
    rule: AnswerRule = "continuation",
) -> Evidence:
    """Run the diagnostic on some ids of a design."""
    pairs = [question for number in ids for question in questions(encoder, design, number, rule)]
    return diagnose_questions(surgeon, pairs, windows(surgeon.anatomy.n_layers, width))


def diagnose_questions(surgeon: Surgeon, items: Sequence[Question], spans: Sequence[Window]) -> Evidence:
    """Run the diagnostic: one row per question x site x window of `spans` (columns: `_diagnostic_rows`).

    There is no filter: every row records whether the model answers the two unpatched prompts correctly. Boxes whose
    answer the edit does not change (those of a distractor swap) have no margin and no question.
    """
    settings = {
        "mode": DIAGNOSTIC_MODE,
        "site": "resid",
        "direction": "counterfactual into original",
        "places": list(SITES),
        "windows": [[span.first, span.last] for span in spans],
        "surgeon": type(surgeon).__name__,
    }
    size = max(QUESTIONS, surgeon.prompts_at_once(len(items[0].pair.original)))
    tables = [table for part in blocks(len(items), size) for table in _tables(surgeon, items[part], spans)]
    return DIAGNOSTIC.evidence(pd.concat(tables, ignore_index=True), settings)


def questions(encoder: Encoder, design: Design, prompt_id: int, rule: AnswerRule = "continuation") -> list[Question]:
    """The pair of an id with a question about every box whose answer it changes: asked, partner, remaining."""
    return [
        Question(name, traced_pair(encoder, pair, rule))
        for name, pair in pairs_by_question(design.tracing(prompt_id, DIAGNOSTIC_MODE))
    ]


def _tables(surgeon: Surgeon, items: Sequence[Question], spans: Sequence[Window]) -> Iterator[pd.DataFrame]:
    """The rows of each site, on top of one recording of originals and one of counterfactuals."""
    originals = [question.pair.original for question in items]
    counterfactuals = [question.pair.counterfactual for question in items]
    recording, donor = surgeon.record(token_batch(originals)), surgeon.record(token_batch(counterfactuals))
    for site in SITES:
        place = positions(originals, site)  # (question,)
        if not torch.equal(place, positions(counterfactuals, site)):
            raise PromptError(f"{site} stands at different tokens in a pair; they cannot be interchanged")
        yield _site_rows(surgeon, recording, donor, items, site, place, spans)


def _site_rows(
    surgeon: Surgeon,
    recording: RecordedRun,
    donor: RecordedRun,
    items: Sequence[Question],
    site: str,
    place: Tensor,
    spans: Sequence[Window],
) -> pd.DataFrame:
    """Patch one site with every window, all questions in one batch; rows are ordered by window, then question."""
    pairs, length = [question.pair for question in items], recording.length
    candidates = torch.tensor([pair.candidates for pair in pairs])  # (question, candidate)
    read = Read("logits", at=length - 1, reduce=LogitsOf(candidates))
    base, other_base = (surgeon.run(run, [], [read])[0].cpu() for run in (recording, donor))
    layers = range(surgeon.anatomy.n_layers)
    reads = [Read("resid", at=place[:, None], layer=layer) for layer in layers]
    new, old = surgeon.run(donor, [], reads), surgeon.run(recording, [], reads)
    by_layer = torch.stack([relative_change(*values)[:, 0].cpu() for values in zip(new, old, strict=True)])
    variants = [
        [Edit("resid", new[layer], at=place[:, None], layer=layer) for layer in layers[span.first : span.last + 1]]
        for span in spans
    ]
    (patched,) = surgeon.sweep(recording, variants, [read], allow_noop=True)  # (window, question, candidate)
    patched = patched.flatten(0, 1).cpu()  # (row, candidate), row = window x question
    changes = torch.cat([by_layer[span.first : span.last + 1].amax(0) for span in spans])  # (row,)
    return _diagnostic_rows(items, site, spans, patched, base, other_base).assign(relative_change=changes.numpy())


def _diagnostic_rows(
    items: Sequence[Question], site: str, spans: Sequence[Window], patched: Tensor, base: Tensor, other_base: Tensor
) -> pd.DataFrame:
    """Columns: prompt, question, place, first, last (layers of the window); `margin`, the logit of the counterfactual's
    answer minus that of the original's, `base_margin` without the patch, and `change`, their difference; `hit`, whether
    the counterfactual's answer now has the largest logit of all objects; whether the unpatched answers are right."""
    answer = torch.tensor([question.pair.answer for question in items])
    rival = torch.tensor([_rival(question.pair) for question in items])
    rows = torch.arange(len(items))
    unpatched = base[rows, rival] - base[rows, answer]  # (question,)
    question = torch.arange(len(spans) * len(items)) % len(items)  # (row,)
    every_row = torch.arange(question.numel())
    margin = patched[every_row, rival[question]] - patched[every_row, answer[question]]
    return pd.DataFrame(
        {
            "prompt": [question.pair.id for question in items] * len(spans),
            "question": [question.name for question in items] * len(spans),
            "place": site,
            "first": [span.first for span in spans for _ in items],
            "last": [span.last for span in spans for _ in items],
            "margin": margin.numpy(),
            "base_margin": unpatched[question].numpy(),
            "change": (margin - unpatched[question]).numpy(),
            "hit": (patched.argmax(dim=1) == rival[question]).numpy(),
            "original_correct": (base.argmax(dim=1) == answer)[question].numpy(),
            "counterfactual_correct": (other_base.argmax(dim=1) == rival)[question].numpy(),
        }
    )


def _rival(pair: TracedPair) -> int:
    """The place of the counterfactual's answer among the candidates, which are the original's objects."""
    if pair.rival is None or pair.rival not in pair.candidates:
        raise PromptError(f"pair {pair.id}: the counterfactual's answer is none of the original's objects")
    return pair.candidates.index(pair.rival)


def mention(surgeon: Surgeon, pairs: Sequence[TracedPair], *, mode: str, context: str, swap: str) -> Evidence:
    """Patch the roles `context` and `swap`: a row per pair, layer from the second on, and entry of `PATCHED`."""
    check_pairs(pairs)
    roles = (context, swap)
    settings = {
        "mode": mode,
        "site": "resid",
        "direction": "original into counterfactual",
        "roles": list(roles),
        "patched": list(PATCHED),
        "surgeon": type(surgeon).__name__,
    }
    tables = []
    for part in prompt_blocks(surgeon, [pair.original for pair in pairs]):
        sides = [[pair.original for pair in pairs[part]], [pair.counterfactual for pair in pairs[part]]]
        originals, recording = (surgeon.record(token_batch(side)) for side in sides)
        for name in PATCHED:
            rows = _mention_rows(surgeon, originals, recording, pairs[part], roles, name)
            tables.append(rows.assign(mode=mode, patched=name))
    return MENTION.evidence(pd.concat(tables, ignore_index=True), settings)


def _mention_rows(
    surgeon: Surgeon,
    originals: RecordedRun,
    recording: RecordedRun,
    pairs: Sequence[TracedPair],
    roles: tuple[str, str],
    name: str,
) -> pd.DataFrame:
    """The rows of one entry of `PATCHED`, at every layer from the second on."""
    patched_roles = [role for role, is_patched in zip(roles, PATCHED[name], strict=True) if is_patched]
    prompts = [pair.original for pair in pairs]
    at = torch.stack([positions(prompts, role) for role in patched_roles], dim=1)  # (prompt, label)
    layers = range(1, surgeon.anatomy.n_layers)
    reads = [Read("resid", at=at, layer=layer) for layer in layers]
    new, old = surgeon.run(originals, [], reads), surgeon.run(recording, [], reads)  # (prompt, label, hidden) a layer
    candidates, last = candidate_tokens(pairs), recording.length - 1
    read = Read("logits", at=last, reduce=LogitsOf(candidates))
    edits = [[Edit("resid", values, at=at, layer=layer)] for layer, values in zip(layers, new, strict=True)]
    (results,) = surgeon.sweep(recording, [[], *edits], [read], allow_noop=True)  # (variant, prompt, candidate)
    base, logits = results[0].cpu(), results[1:, :, None].cpu().transpose(0, 1)  # (prompt, layer, 1, candidate)
    change = torch.stack([relative_change(*values).amax(1).cpu() for values in zip(new, old, strict=True)], dim=1)
    return _table(pairs, layers, logits, base, change)


def _table(
    pairs: Sequence[TracedPair], layers: Sequence[int], logits: Tensor, base: Tensor, change: Tensor
) -> pd.DataFrame:
    """Rows from patched logits (prompt, layer, 1, candidate), unpatched ones (prompt, candidate), and relative
    changes."""
    ids, depth = [pair.id for pair in pairs], len(layers)
    unpatched = base[:, None, None].expand(-1, depth, -1, -1)  # (prompt, layer, 1, candidate)
    columns = {
        **{name: value.reshape(-1) for name, value in scores(pairs, logits).items()},
        **{f"base_{name}": value.reshape(-1) for name, value in scores(pairs, unpatched).items()},
    }
    where = {"prompt": [number for number in ids for _ in layers], "layer": list(layers) * len(ids)}
    return pd.DataFrame({**where, **columns, "relative_change": change.reshape(-1).numpy()})


def measure_stored(surgeon: Surgeon, pairs: Sequence[TracedPair]) -> Evidence:
    """Patch both spans from every second prompt: a row per pair and span. Pairs of an id are in the order of
    `DONORS`."""
    tables = []
    for part in prompt_blocks(surgeon, [pair.original for pair in pairs]):
        block = pairs[part]
        recording = surgeon.record(token_batch([pair.original for pair in block]))
        donor = surgeon.record(token_batch([pair.counterfactual for pair in block]))
        names = [DONORS[number % len(DONORS)] for number in range(len(pairs))[part]]
        tables += [_stored_rows(surgeon, recording, donor, block, names, span) for span in get_args(SpanName)]
    settings = {"site": "resid", "direction": "second prompt into first", "surgeon": type(surgeon).__name__}
    return STORED_STATE.evidence(pd.concat(tables, ignore_index=True), settings)


def span_of(prompt: TokenizedPrompt, span: SpanName) -> range:
    """The tokens of a span: of the swap's sentence and of the question before its label; or of that label and of all
    that follows before the readout."""
    label = int(positions([prompt], "question_box"))
    if span == "question":
        return range(label, int(positions([prompt], "readout")))
    before = range(int(positions([prompt], "swap_first")))
    stops = [at for at in before if "." in prompt.pieces[at]]
    return range(stops[-1] + 1, label)


def _span_positions(prompts: Sequence[TokenizedPrompt], span: SpanName) -> Tensor:
    spans = [span_of(prompt, span) for prompt in prompts]
    if len({len(tokens) for tokens in spans}) > 1:
        raise PromptError(f"the tokens of {span!r} differ in number between prompts; they cannot be taken together")
    return torch.tensor([list(tokens) for tokens in spans])  # (pair, token)


def _stored_rows(
    surgeon: Surgeon,
    recording: RecordedRun,
    donor: RecordedRun,
    pairs: Sequence[TracedPair],
    names: Sequence[str],
    span: SpanName,
) -> pd.DataFrame:
    """Patch one span at every layer; the answer is the largest logit of the objects of both prompts."""
    at = _span_positions([pair.original for pair in pairs], span)
    if not torch.equal(at, _span_positions([pair.counterfactual for pair in pairs], span)):
        raise PromptError(f"{span!r} stands at other tokens in the second prompt; they cannot be interchanged")
    reads = [Read("resid", at=at, layer=layer) for layer in range(surgeon.anatomy.n_layers)]
    new, old = surgeon.run(donor, [], reads), surgeon.run(recording, [], reads)  # (pair, token, hidden) a layer
    edits = [Edit("resid", values, at=at, layer=layer) for layer, values in enumerate(new)]
    tokens = torch.tensor([[pair.candidates[pair.answer], _second_answer(pair), *pair.candidates] for pair in pairs])
    read = Read("logits", at=recording.length - 1, reduce=LogitsOf(tokens))  # (pair, token)
    other = surgeon.run(donor, [], [read])[0].cpu()  # (pair, token)
    base, patched = surgeon.sweep(recording, [[], edits], [read], allow_noop=True)[0].cpu()  # (pair, token)
    own_answer, second_answer = (tokens[:, [place]] for place in range(2))

    def says(logits: Tensor, answer: Tensor) -> Tensor:
        return tokens.gather(1, logits.argmax(1, keepdim=True)).eq(answer)[:, 0]  # (pair,)

    changes = torch.stack([relative_change(*values).amax(1).cpu() for values in zip(new, old, strict=True)])
    return pd.DataFrame(
        {
            "prompt": [pair.id for pair in pairs],
            "donor": names,
            "span": span,
            "own": says(patched, own_answer).numpy(),
            "second": says(patched, second_answer).numpy(),
            "original_correct": says(base, own_answer).numpy(),
            "second_correct": says(other, second_answer).numpy(),
            "relative_change": changes.amax(0).numpy(),
        }
    )


def _second_answer(pair: TracedPair) -> int:
    if pair.rival is None or not pair.changes_answer:
        raise PromptError(f"pair {pair.id}: the second prompt has no answer of its own")
    return pair.rival


def _pairs(bench: Workbench, request: InBlocks) -> list[TracedPair]:
    """The scored pairs of a request."""
    encoded, encoder = bench.prompts.encode(request.prompts), bench.prompts.encoder
    sides = zip(encoded.items, encoded.prompts, encoded.counterfactuals, strict=True)
    return [
        scored_pair(encoder, item, original, counterfactual, request.rule)
        for item, original, counterfactual in sides
        if isinstance(item, Pair)
    ]


def measure_answered(bench: Workbench, request: Answered) -> Evidence:
    right = are_right(bench.surgeon, _pairs(bench, request))
    return ANSWERED.evidence(pd.DataFrame({"prompt": request.prompts.ids, "right": right}), {})


def measure_map(bench: Workbench, request: TracingMap) -> Evidence:
    pairs = _pairs(bench, request)
    check_changed(request.mode, pairs)
    return trace(bench.surgeon, pairs, mode=request.mode, roles=request.roles)


def measure_mention(bench: Workbench, request: FirstMention) -> Evidence:
    pairs = _pairs(bench, request)
    check_changed(request.mode, pairs)
    return mention(bench.surgeon, pairs, mode=request.mode, context=request.context, swap=request.swap)


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


def measure_stored_state(bench: Workbench, request: StoredState) -> Evidence:
    return measure_stored(bench.surgeon, _pairs(bench, request))
