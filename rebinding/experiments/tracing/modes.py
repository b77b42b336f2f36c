"""The pairs to trace, from a design: the filter of correct originals, and the modes that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from rebinding.evidence import Evidence
from rebinding.experiments.tokens import BLOCK, token_batch
from rebinding.experiments.tracing.maps import TracedPair, trace
from rebinding.experiments.tracing.request import OVERSAMPLING, TRACING, Query, counterfactual
from rebinding.surgery import LogitsOf, Read, Surgeon
from rebinding.task.answers import AnswerRule
from rebinding.task.designs import TRACING_MODES, Design, DesignError, Pair
from rebinding.task.prompts import Encoded, Encoder, TokenizedPrompt


class UnchangedAnswer(DesignError):
    """A claim was to rest on a mode whose counterfactual has the original's answer."""


def trace_design(
    surgeon: Surgeon,
    encoder: Encoder,
    design: Design,
    *,
    mode: str,
    n: int,
    first_id: int = 0,
    query: Query = "same",
    rule: AnswerRule = "continuation",
    for_claims: bool = True,
    layers: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    roles: Sequence[str] | None = None,
) -> Evidence:
    """Trace one mode on the first `n` of `4 n` ids whose original is answered correctly (fewer, if there are fewer).

    A mode that does not change the answer is refused unless `for_claims=False`, because restoring the answer shows
    nothing. Its evidence then has the setting `changes_answer: false`, and no claim accepts it.
    """
    pool = range(first_id, first_id + OVERSAMPLING * n)
    candidates = (traced_pair(encoder, counterfactual(design, number, mode, query), rule) for number in pool)
    pairs = correct_ones(surgeon, candidates, n)
    if not pairs:
        raise DesignError(
            f"no original of ids {pool.start}..{pool.stop - 1} is answered correctly among its objects, so there is"
            " nothing to trace; take another model, design or first_id"
        )
    if for_claims:
        check_changed(mode, pairs, query)
    evidence = trace(surgeon, pairs, mode=mode, layers=layers, tokens=tokens, roles=roles)
    changes = all(pair.changes_answer for pair in pairs)
    return TRACING.evidence(evidence.rows, {**evidence.settings, "query": query, "changes_answer": changes})


def check_changed(mode: str, pairs: Sequence[TracedPair], query: Query = "same") -> None:
    """Refuse pairs whose two prompts have the same answer: restoring it shows nothing."""
    same = [pair.id for pair in pairs if not pair.changes_answer]
    if same:
        usable = [name for name, entry in TRACING_MODES.items() if entry.changes_answer and entry.keeps_length]
        raise UnchangedAnswer(
            f"mode {mode!r} with query {query!r} leaves the answer as it is ({len(same)} of {len(pairs)} pairs, the"
            f" first is id {same[0]}): restoring it shows nothing. Pass for_claims=False to look at it, or use one of"
            f" {', '.join(usable)}"
        )


def traced_pair(encoder: Encoder, pair: Pair, rule: AnswerRule = "continuation") -> TracedPair:
    """Encode a pair and add its candidates."""
    original, altered = encoder.encode([pair.original, pair.counterfactual])
    return scored_pair(encoder, pair, original, altered, rule)


def scored_pair(encoder: Encoder, pair: Pair, original: Encoded, other: Encoded, rule: AnswerRule) -> TracedPair:
    """An encoded pair: the candidates are the original's objects after its operations, by slot of their box."""
    story = pair.original.story
    contents = [(box, thing) for box, thing in story.state().items() if thing is not None]
    rival = encoder.answer_token(pair.counterfactual.answer, rule) if pair.counterfactual.answerable else None
    return TracedPair(
        pair.id,
        original,
        other,
        encoder.answer_tokens([thing for _, thing in contents], rule),
        [box for box, _ in contents].index(pair.original.question),
        rival,
    )


def correct_ones(surgeon: Surgeon, pool: Iterator[TracedPair], n: int) -> list[TracedPair]:
    """The first `n` pairs of a pool whose original is answered correctly; consumes no more of the pool than needed.

    Takes pairs in the blocks in which they are traced, so that one recording can serve both. Correct, as published,
    means that the first largest logit among the original's objects is that of its answer.
    """
    correct: list[TracedPair] = []
    while len(correct) < n:
        part = list(islice(pool, min(BLOCK, n - len(correct))))
        if not part:
            break
        correct += [pair for pair, is_right in zip(part, are_right(surgeon, part), strict=True) if is_right]
    return correct[:n]


def are_right(surgeon: Surgeon, pairs: Sequence[TracedPair]) -> list[bool]:
    """Whether each original is answered correctly; runs all of them together."""
    candidates = torch.tensor([pair.candidates for pair in pairs])  # (prompt, candidate)
    logits = candidate_logits(surgeon, [pair.original for pair in pairs], candidates)
    right: list[bool] = (
        logits.argmax(dim=1) == torch.tensor([pair.answer for pair in pairs]).to(logits.device)
    ).tolist()
    return right


def candidate_logits(surgeon: Surgeon, prompts: Sequence[TokenizedPrompt], candidates: torch.Tensor) -> torch.Tensor:
    """Logits of candidates (prompt, candidate) at the readout of unedited prompts."""
    read = Read("logits", positions=len(prompts[0]) - 1, reduce=LogitsOf(candidates))
    return surgeon.run(surgeon.record(token_batch(prompts)), [], [read])[0][:, 0]
