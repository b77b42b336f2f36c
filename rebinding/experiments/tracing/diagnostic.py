"""The readout diagnostic: is the updated state ready after the swap sentence, or is it resolved at the readout?

The direction is opposite to tracing: residuals of the *counterfactual* are written into the run of the *original*, at
the token that ends the swap sentence or at the readout, with a question about every box in turn. In the pair the swap
names the remaining box instead of the partner; of all published edits only this one changes the answers of all three
boxes. If the swap's full stop held the state, a patch there would change the answer to every question as a patch at the
readout does.

A patch of one layer is at its input. A patch of a window is at the input of each of its layers, so that everything that
later tokens read from this token within the window is counterfactual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.tokens import BLOCK, blocks, positions, relative_change, token_batch
from rebinding.experiments.tracing.maps import TracedPair
from rebinding.experiments.tracing.modes import traced_pair
from rebinding.experiments.tracing.request import DIAGNOSTIC, DIAGNOSTIC_MODE, pairs_by_question
from rebinding.surgery import Edit, LogitsOf, Read, Recording, Surgeon
from rebinding.surgery.sweep import sweep
from rebinding.task.answers import AnswerRule
from rebinding.task.designs import Design
from rebinding.task.prompts import Encoder, PromptError

SITES = ("swap_period", "readout")
QUESTIONS = 3 * BLOCK
"""The fewest questions that are run together: three for each prompt of a block."""
WINDOWS = 6
"""By default a window is a sixth of the layers."""


@dataclass(frozen=True, order=True)
class Window:
    """Layers `first` to `last`, both patched."""

    first: int
    last: int


def before_the_answer(n_layers: int) -> Window:
    """All layers but the last sixth: there the readout already encodes the answer, and a patch of it would be the
    answer itself."""
    return Window(0, n_layers - 1 - max(1, n_layers // WINDOWS))


def windows_of_rules(n_layers: int) -> list[Window]:
    """All layers together, and those before the answer."""
    everything = Window(0, n_layers - 1)
    return [before_the_answer(n_layers), everything] if n_layers > 1 else [everything]


def windows(n_layers: int, width: int | None = None) -> list[Window]:
    """Every single layer, every run of `width` layers, and the windows of rules."""
    width = max(1, -(-n_layers // WINDOWS)) if width is None else width
    if not 1 <= width <= n_layers:
        raise ValueError(f"a window of {width} layers in a model of {n_layers}; give 1 to {n_layers}")
    runs = {Window(first, first + size - 1) for size in (1, width) for first in range(n_layers - size + 1)}
    return sorted(runs | set(windows_of_rules(n_layers)))


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
    """Run the diagnostic: one row per question x site x window of `spans` (columns: `_rows`).

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
    recording: Recording,
    donor: Recording,
    items: Sequence[Question],
    site: str,
    place: Tensor,
    spans: Sequence[Window],
) -> pd.DataFrame:
    """Patch one site with every window, all questions in one batch; rows are ordered by window, then question."""
    pairs, length = [question.pair for question in items], recording.length
    candidates = torch.tensor([pair.candidates for pair in pairs])  # (question, candidate)
    read = Read("logits", positions=length - 1, reduce=LogitsOf(candidates))
    base, other_base = (surgeon.run(run, [], [read])[0][:, 0].cpu() for run in (recording, donor))
    layers = range(surgeon.anatomy.n_layers)
    reads = [Read("resid", layer, positions=place[:, None]) for layer in layers]
    new, old = surgeon.run(donor, [], reads), surgeon.run(recording, [], reads)
    by_layer = torch.stack([relative_change(*values)[:, 0].cpu() for values in zip(new, old, strict=True)])
    variants = [
        [Edit("resid", layer, new[layer], positions=place[:, None]) for layer in layers[span.first : span.last + 1]]
        for span in spans
    ]
    (patched,) = sweep(surgeon, recording, variants, [read], allow_noop=True)  # (window, question, 1, candidate)
    patched = patched[:, :, 0].flatten(0, 1).cpu()  # (row, candidate), row = window x question
    changes = torch.cat([by_layer[span.first : span.last + 1].amax(0) for span in spans])  # (row,)
    return _rows(items, site, spans, patched, base, other_base).assign(relative_change=changes.numpy())


def _rows(
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
