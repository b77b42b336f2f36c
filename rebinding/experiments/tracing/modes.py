"""From a design to the pairs that are traced: which mode stands for which panel, the filter, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeAlias

import torch

from rebinding.evidence import Evidence
from rebinding.evidence.store import Shelf
from rebinding.experiments.readout import BLOCK, logits_of
from rebinding.experiments.tokens import token_batch
from rebinding.experiments.tracing.kinds import TRACING
from rebinding.experiments.tracing.maps import TracedPair, trace
from rebinding.surgery import Read, Surgeon
from rebinding.world.answers import AnswerRule
from rebinding.world.designs import TRACING_MODES, Design, DesignError, Pair, tracing_mode
from rebinding.world.prompts import Encoded, Encoder

Query: TypeAlias = Literal["same", "partner"]
"""Which box the counterfactual asks about: the original's, or the original's partner in the swap."""
OVERSAMPLING = 4
"""The published filter looks for N correct originals among so many times N ids."""


class UnchangedAnswer(DesignError):
    """A mode whose counterfactual has the original's answer was asked for in support of a claim."""


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
    shelf: Shelf | None = None,
    block: int = BLOCK,
    progress: bool | None = None,
) -> Evidence:
    """Trace one mode on the first `n` of `4 n` ids whose original is answered correctly (fewer, if there are fewer).

    A mode that leaves the answer as it is shows nothing by restoring it, and is refused unless `for_claims=False`; its
    evidence then says `changes_answer: false` in its settings, and nothing that judges claims accepts it.
    """
    pool = Pool(design, mode, n, first_id, query, rule, for_claims)
    pairs = pool.pairs(surgeon, encoder)
    found = trace(
        surgeon,
        pairs,
        mode=mode,
        layers=layers,
        tokens=tokens,
        roles=roles,
        shelf=shelf,
        block=block,
        progress=progress,
    )
    return TRACING.evidence(found.rows, {**found.settings, **pool.described(encoder, pairs)})


@dataclass(frozen=True)
class Pool:
    """The pairs of a mode from `first_id` on, of which the first `n` are traced whose original is right."""

    design: Design
    mode: str
    n: int
    first_id: int = 0
    query: Query = "same"
    rule: AnswerRule = "continuation"
    for_claims: bool = True

    @property
    def ids(self) -> range:
        """Everything that is looked at if need be."""
        return range(self.first_id, self.first_id + OVERSAMPLING * self.n)

    def pairs(self, surgeon: Surgeon, encoder: Encoder) -> list[TracedPair]:
        """Those that are traced; an error if there are none, or if they could not support a claim that they are for."""
        made = (counterfactual(self.design, number, self.mode, self.query) for number in self.ids)
        found = correct_ones(surgeon, (traced_pair(encoder, pair, self.rule) for pair in made), self.n)
        if not found:
            raise DesignError(
                f"no original of ids {self.ids.start}..{self.ids.stop - 1} is answered correctly among its objects, so"
                " there is nothing to trace; take another model, design or first_id"
            )
        same = [pair.id for pair in found if not pair.changes_answer]
        if self.for_claims and same:
            raise UnchangedAnswer(
                f"mode {self.mode!r} with query {self.query!r} leaves the answer as it is ({len(same)} of {len(found)}"
                f" pairs, the first is id {same[0]}): restoring it shows nothing. Pass for_claims=False to look at it,"
                " or use one of"
                f" {', '.join(name for name, one in TRACING_MODES.items() if one.changes_answer and one.keeps_length)}"
            )
        return found

    def described(self, encoder: Encoder, pairs: Sequence[TracedPair]) -> dict[str, Any]:
        """What evidence says of the pairs that were found."""
        return {
            **described(self.design, encoder),
            "query": self.query,
            "answer_rule": self.rule,
            "changes_answer": all(pair.changes_answer for pair in pairs),
            "n": self.n,
            "kept": len(pairs),
            "ids": [self.ids.start, self.ids.stop - 1],
            "filter": "original correct",
        }


def described(design: Design, encoder: Encoder) -> dict[str, Any]:
    """What evidence says of the prompts."""
    words = design.vocabulary.split(design.split)
    return {
        "design": design.name,
        "split": design.split,
        "boxes": design.boxes,
        "operations": design.operations,
        "verb": design.verb,
        "distractor": design.distractor,
        "distractor_boxes": "the last two, which nothing else touches" if design.distractor else None,
        "labels": len(words.labels),
        "objects": len(words.objects),
        "form": encoder.form,
    }


def counterfactual(design: Design, prompt_id: int, mode: str, query: Query = "same") -> Pair:
    """A design's tracing pair; with `query="partner"` its counterfactual asks about the original's partner."""
    if not tracing_mode(mode).keeps_length:
        raise DesignError(
            f"the counterfactual of {mode!r} is shorter than the original, so tokens do not correspond; it can be"
            " answered but not traced"
        )
    pair = design.tracing(prompt_id, mode)
    if query == "same":
        return pair
    partner = pair.original.partner
    if partner is None:
        raise DesignError(f"prompt {prompt_id} asks about a box without a partner; query='partner' needs one")
    return replace(pair, counterfactual=replace(pair.counterfactual, question=partner))


def traced_pair(encoder: Encoder, pair: Pair, rule: AnswerRule = "continuation") -> TracedPair:
    """A pair as tokens: the candidates are the original's objects after its operations, by slot of their box."""
    original, other = encoder.encode([pair.original, pair.counterfactual])
    story = pair.original.story
    held = [(box, thing) for box, thing in story.state().items() if thing is not None]
    rival = encoder.answer_token(pair.counterfactual.answer, rule) if pair.counterfactual.answerable else None
    return TracedPair(
        pair.id,
        original,
        other,
        encoder.answer_tokens([thing for _, thing in held], rule),
        [box for box, _ in held].index(pair.original.question),
        rival,
    )


def correct_ones(surgeon: Surgeon, pool: Iterator[TracedPair], n: int) -> list[TracedPair]:
    """The first `n` pairs of a pool whose original is answered correctly; no more of the pool is looked at than needed.

    Looked at in the blocks in which they are traced, so that one recording can serve both.

    Correct is as published: the first largest logit among the original's objects is that of its answer.
    """
    kept: list[TracedPair] = []
    while len(kept) < n:
        part = list(islice(pool, min(BLOCK, n - len(kept))))
        if not part:
            break
        wanted = torch.tensor([pair.candidates for pair in part])  # (prompt, candidate)
        logits = candidate_logits(surgeon, [pair.original for pair in part], wanted)
        right = logits.argmax(dim=1) == torch.tensor([pair.answer for pair in part]).to(logits.device)
        kept += [pair for pair, is_right in zip(part, right.tolist(), strict=True) if is_right]
    return kept[:n]


def candidate_logits(surgeon: Surgeon, prompts: Sequence[Encoded], wanted: torch.Tensor) -> torch.Tensor:
    """Logits of candidates (prompt, candidate) at the readout of unedited prompts."""
    read = Read("logits", positions=len(prompts[0]) - 1, take=logits_of(wanted))
    return surgeon.run(surgeon.record(token_batch(prompts)), [], [read])[0][:, 0]
