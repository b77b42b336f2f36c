"""The prompts of a search that is not told where to look."""

from __future__ import annotations

from collections.abc import Sequence

from rebinding.experiments.anywhere.pairs import Pairs, pairs_of
from rebinding.experiments.anywhere.request import Settings
from rebinding.experiments.anywhere.search import Search
from rebinding.paper.graph import Graph
from rebinding.study.bench import DISCOVERY, Bench
from rebinding.study.drawing import draw
from rebinding.subjects import SubjectError
from rebinding.surgery import TorchSurgeon
from rebinding.world.designs import Design
from rebinding.world.prompts import Encoded, Encoder

NOISE = "independent"
PROMPTS = 36
"""A balanced block of three boxes and one swap."""


def search_pairs(encoder: Encoder, drawn: Design, ids: Sequence[int]) -> Pairs:
    """Clean prompts of some ids and independent noise; of a counterbalanced design whole blocks are balanced."""
    found = draw(encoder, drawn, ids, ("noise", NOISE))
    return pairs_of(ids, found.prompts, found.others, [_objects(encoder, one) for one in found.prompts])


def searched(bench: Bench) -> Graph:
    """What the search finds on this model; what is done is kept in its store."""
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise SubjectError(f"{bench.subject.name} runs elsewhere; the search needs a model on this machine")
    drawn = bench.design("counterbalanced")
    pairs = search_pairs(bench.encoder, drawn, range(DISCOVERY, DISCOVERY + PROMPTS))
    return Search(bench.surgeon, pairs, Settings(), bench.shelf).graph({"design": drawn.name, "noise": NOISE})


def _objects(encoder: Encoder, one: Encoded) -> tuple[int, ...]:
    """The answer tokens of a story's objects, the right one first."""
    answer = one.prompt.answer
    others = [word for word in one.prompt.story.objects if word != answer]
    return encoder.answer_tokens([answer, *others])
