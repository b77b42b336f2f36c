"""Does a token before the question's label hold the updated objects?

All tokens of a span are taken at once, at the input of every layer, from a second prompt. If they held the state, the
answer would become the second prompt's object. There are two second prompts: one with the same swap and other objects
in all boxes, and one with the same objects and another swap. From the swap to the token before the asked label, the
latter is the second prompt itself from there on, so the patch must change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.tokens import positions, prompt_blocks, relative_change, token_batch
from rebinding.experiments.tracing.maps import TracedPair
from rebinding.experiments.tracing.request import DONORS, STORED_STATE, SpanName
from rebinding.surgery import Edit, LogitsOf, Read, Recording, Surgeon
from rebinding.surgery.sweep import sweep
from rebinding.task.prompts import PromptError, TokenizedPrompt


def measure_stored(surgeon: Surgeon, pairs: Sequence[TracedPair]) -> Evidence:
    """Patch both spans from every second prompt: a row per pair and span. Pairs of an id are in the order of
    `DONORS`."""
    tables = []
    for part in prompt_blocks(surgeon, [pair.original for pair in pairs]):
        block = pairs[part]
        recording = surgeon.record(token_batch([pair.original for pair in block]))
        donor = surgeon.record(token_batch([pair.counterfactual for pair in block]))
        names = [DONORS[number % len(DONORS)] for number in range(len(pairs))[part]]
        tables += [_rows(surgeon, recording, donor, block, names, span) for span in get_args(SpanName)]
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


def _rows(
    surgeon: Surgeon,
    recording: Recording,
    donor: Recording,
    pairs: Sequence[TracedPair],
    names: Sequence[str],
    span: SpanName,
) -> pd.DataFrame:
    """Patch one span at every layer; the answer is the largest logit of the objects of both prompts."""
    at = _span_positions([pair.original for pair in pairs], span)
    if not torch.equal(at, _span_positions([pair.counterfactual for pair in pairs], span)):
        raise PromptError(f"{span!r} stands at other tokens in the second prompt; they cannot be interchanged")
    reads = [Read("resid", layer, positions=at) for layer in range(surgeon.anatomy.n_layers)]
    new, old = surgeon.run(donor, [], reads), surgeon.run(recording, [], reads)  # (pair, token, hidden) a layer
    edits = [Edit("resid", layer, values, positions=at) for layer, values in enumerate(new)]
    tokens = torch.tensor([[pair.candidates[pair.answer], _rival(pair), *pair.candidates] for pair in pairs])
    read = Read("logits", positions=recording.length - 1, reduce=LogitsOf(tokens))  # (pair, 1, token)
    other = surgeon.run(donor, [], [read])[0][:, 0].cpu()  # (pair, token)
    base, patched = sweep(surgeon, recording, [[], edits], [read], allow_noop=True)[0][:, :, 0].cpu()  # (pair, token)
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


def _rival(pair: TracedPair) -> int:
    if pair.rival is None or not pair.changes_answer:
        raise PromptError(f"pair {pair.id}: the second prompt has no answer of its own")
    return pair.rival
