"""Is the whole updated state ready after the swap sentence, or is it resolved at the readout?

The other direction than tracing: residuals of the *counterfactual* are written into the run of the *original*, at the
token that ends the swap sentence or at the readout, while the question is about every box in turn. The pair is the one
whose swap names the remaining box instead of the partner: of all published edits the only one that changes the answers
of all three boxes. If the swap's end held the state, a patch there would move every question as a patch at the readout
does.

Per layer the patch stands at the input of one layer. Over a window of layers it stands at the input of each of them, so
that everything which later tokens read of this token within the window is counterfactual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.tokens import BLOCK, blocks, logits_of, moved, positions, token_batch
from rebinding.experiments.tracing.maps import TracedPair
from rebinding.experiments.tracing.modes import traced_pair
from rebinding.experiments.tracing.request import DIAGNOSTIC, DIAGNOSTIC_MODE, pairs_by_question
from rebinding.surgery import Edit, Read, Surgeon
from rebinding.task.answers import AnswerRule
from rebinding.task.designs import Design
from rebinding.task.prompts import Encoder, PromptError

SITES = ("swap_period", "readout")
QUESTIONS = 3 * BLOCK
"""Questions of a block: there are three of each prompt."""
WINDOWS = 6
"""By default a window is a sixth of the layers."""


@dataclass(frozen=True, order=True)
class Window:
    """Layers `first` to `last`, both patched."""

    first: int
    last: int


def before_the_answer(n_layers: int) -> Window:
    """All layers but the last sixth: there, the readout of a model is about to say its answer, and a patch of it would
    be the answer itself."""
    return Window(0, n_layers - 1 - max(1, n_layers // WINDOWS))


def windows(n_layers: int, width: int | None = None) -> list[Window]:
    """Every single layer, every run of `width` layers, all layers together, and those before the answer."""
    width = max(1, -(-n_layers // WINDOWS)) if width is None else width
    if not 1 <= width <= n_layers:
        raise ValueError(f"a window of {width} layers in a model of {n_layers}; give 1 to {n_layers}")
    runs = {Window(first, first + size - 1) for size in (1, width, n_layers) for first in range(n_layers - size + 1)}
    return sorted(runs | {before_the_answer(n_layers)} if n_layers > 1 else runs)


@dataclass(frozen=True)
class Question:
    """A pair that asks about one box, named by what the swap does with it: asked, partner or remaining."""

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
    """The diagnostic on some ids of a design."""
    asked = [question for number in ids for question in questions(encoder, design, number, rule)]
    return diagnose_questions(surgeon, asked, width=width)


def diagnose_questions(surgeon: Surgeon, asked: Sequence[Question], *, width: int | None = None) -> Evidence:
    """Run the diagnostic: one row per question x site x window (columns: `_rows`).

    Nothing is filtered: whether the model answers the two unpatched prompts correctly is recorded with every row.
    Boxes whose answer the edit leaves alone (those of a distractor swap) have no margin and are not asked about.
    """
    spans = windows(surgeon.anatomy.n_layers, width)
    settings = {
        "mode": DIAGNOSTIC_MODE,
        "site": "resid",
        "direction": "counterfactual into original",
        "places": list(SITES),
        "windows": [[span.first, span.last] for span in spans],
        "surgeon": type(surgeon).__name__,
    }
    tables = [_site_rows(surgeon, asked[part], site, spans) for part in blocks(len(asked), QUESTIONS) for site in SITES]
    return DIAGNOSTIC.evidence(pd.concat(tables, ignore_index=True), settings)


def questions(encoder: Encoder, design: Design, prompt_id: int, rule: AnswerRule = "continuation") -> list[Question]:
    """The pair of an id, asking about every box whose answer it changes, in the order asked, partner, remaining."""
    return [
        Question(name, traced_pair(encoder, pair, rule))
        for name, pair in pairs_by_question(design.tracing(prompt_id, DIAGNOSTIC_MODE))
    ]


def _site_rows(surgeon: Surgeon, asked: Sequence[Question], site: str, spans: Sequence[Window]) -> pd.DataFrame:
    """Patch one site with every window, all questions at once; rows stand window by window."""
    pairs = [question.pair for question in asked]
    originals, others = [pair.original for pair in pairs], [pair.counterfactual for pair in pairs]
    where, length = positions(originals, site), len(originals[0])
    if not torch.equal(where, positions(others, site)):
        raise PromptError(f"{site} stands at different tokens in a pair; they cannot be interchanged")
    wanted = torch.tensor([pair.candidates for pair in pairs])  # (question, candidate)
    recording, other = surgeon.record(token_batch(originals)), surgeon.record(token_batch(others))
    unedited = Read("logits", positions=length - 1, take=logits_of(wanted))
    base, base_other = (surgeon.run(run, [], [unedited])[0][:, 0].cpu() for run in (recording, other))
    layers = range(surgeon.anatomy.n_layers)
    reads = [Read("resid", layer, positions=where[:, None]) for layer in layers]
    values, own = surgeon.run(other, [], reads), surgeon.run(recording, [], reads)
    by_layer = torch.stack([moved(new, old)[:, 0].cpu() for new, old in zip(values, own, strict=True)])
    source = torch.arange(len(pairs)).repeat(len(spans))  # (row,), row = window x question
    edits = []
    for layer in layers:
        inside = torch.tensor([span.first <= layer <= span.last for span in spans]).repeat_interleave(len(pairs))
        rows = torch.nonzero(inside).reshape(-1)
        edits.append(Edit("resid", layer, values[layer][source[rows]], positions=where[source[rows], None], rows=rows))
    read = Read("logits", positions=length - 1, take=logits_of(wanted[source]))
    patched = surgeon.run(recording, edits, [read], source=source, allow_noop=True)[0][:, 0].cpu()  # (row, candidate)
    changes = torch.cat([by_layer[span.first : span.last + 1].amax(0) for span in spans])  # (row,)
    return _rows(asked, site, spans, patched, base, base_other).assign(moved=changes.numpy())


def _rows(
    asked: Sequence[Question], site: str, spans: Sequence[Window], patched: Tensor, base: Tensor, base_other: Tensor
) -> pd.DataFrame:
    """Columns: prompt, question, place, first, last (layers of the window); `margin`, the logit of the counterfactual's
    answer minus that of the original's, `base_margin` without the patch, and `change`, their difference; `hit`, whether
    the counterfactual's answer is now the largest of all objects; and whether the unpatched prompts are right."""
    answer = torch.tensor([question.pair.answer for question in asked])
    rival = torch.tensor([_rival(question.pair) for question in asked])
    at = torch.arange(len(asked))
    unpatched = base[at, rival] - base[at, answer]  # (question,)
    again = torch.arange(len(spans) * len(asked)) % len(asked)  # (row,)
    margin = patched[torch.arange(again.numel()), rival[again]] - patched[torch.arange(again.numel()), answer[again]]
    return pd.DataFrame(
        {
            "prompt": [question.pair.id for question in asked] * len(spans),
            "question": [question.name for question in asked] * len(spans),
            "place": site,
            "first": [span.first for span in spans for _ in asked],
            "last": [span.last for span in spans for _ in asked],
            "margin": margin.numpy(),
            "base_margin": unpatched[again].numpy(),
            "change": (margin - unpatched[again]).numpy(),
            "hit": (patched.argmax(dim=1) == rival[again]).numpy(),
            "original_correct": (base.argmax(dim=1) == answer)[again].numpy(),
            "counterfactual_correct": (base_other.argmax(dim=1) == rival)[again].numpy(),
        }
    )


def _rival(pair: TracedPair) -> int:
    """The place of the counterfactual's answer among the candidates: the edit only moves the original's objects."""
    if pair.rival is None or pair.rival not in pair.candidates:
        raise PromptError(f"pair {pair.id}: the counterfactual's answer is none of the original's objects")
    return pair.candidates.index(pair.rival)
