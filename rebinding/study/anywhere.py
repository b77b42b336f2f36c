"""The prompts of a search that is not told where to look, and of what is asked of the nodes that it finds."""

from __future__ import annotations

from collections.abc import Sequence

from rebinding.evidence import Evidence
from rebinding.experiments.anywhere.crossings import crossings
from rebinding.experiments.anywhere.pairs import Pairs, pairs_of
from rebinding.experiments.anywhere.request import Crossings, Settings
from rebinding.experiments.anywhere.search import Search
from rebinding.paper.circuit import Circuit
from rebinding.paper.graph import Graph
from rebinding.study.bench import DISCOVERY, Bench, measures
from rebinding.study.drawing import Drawn, draw
from rebinding.subjects import SubjectError
from rebinding.surgery import TorchSurgeon
from rebinding.verdicts import GateFailed, requirement
from rebinding.world.designs import Design
from rebinding.world.prompts import Encoded, Encoder

NOISE = "independent"
PROMPTS = 36
"""A balanced block of three boxes and one swap."""


def search_pairs(encoder: Encoder, drawn: Design, ids: Sequence[int]) -> Pairs:
    """Clean prompts of some ids and independent noise; of a counterbalanced design whole blocks are balanced."""
    return _pairs(encoder, draw(encoder, drawn, ids, ("noise", NOISE)))


def _pairs(encoder: Encoder, drawn: Drawn) -> Pairs:
    objects = [_objects(encoder, one) for one in drawn.prompts]
    return pairs_of(drawn.asked.ids, drawn.prompts, drawn.others, objects)


def searched(bench: Bench) -> Graph:
    """What the search finds on this model; what is done is kept in its store."""
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise SubjectError(f"{bench.subject.name} runs elsewhere; the search needs a model on this machine")
    drawn = bench.design("counterbalanced")
    pairs = search_pairs(bench.encoder, drawn, range(DISCOVERY, DISCOVERY + PROMPTS))
    return Search(bench.surgeon, pairs, Settings(), bench.shelf).graph({"design": drawn.name, "noise": NOISE})


def crossed(bench: Bench, drawn: Design, circuit: Circuit, n: int) -> Crossings:
    """Questions about a box that is swapped, on prompts that the search did not see."""
    even = bench.design("counterbalanced")
    prompts = bench.draw_with(even, bench.evaluation, n, ("swap_asked",), ("noise", NOISE))
    return Crossings(prompts, bench.draw(even, range(DISCOVERY, DISCOVERY + PROMPTS), ("noise", NOISE)), Settings())


@measures(Crossings)
def measure_crossings(bench: Bench, asked: Crossings) -> Evidence:
    surgeon = bench.surgeon
    if not isinstance(surgeon, TorchSurgeon):
        why = "the search needs a model on this machine, and this one runs elsewhere"
        raise GateFailed(requirement("runs_here", False, why))
    found, fresh = (
        Search(surgeon, _pairs(bench.encoder, bench.drawn(prompts)), asked.how, bench.shelf)
        for prompts in (asked.searched, asked.prompts)
    )
    return crossings(fresh, found.nodes())


def _objects(encoder: Encoder, one: Encoded) -> tuple[int, ...]:
    """The answer tokens of a story's objects, the right one first."""
    answer = one.prompt.answer
    others = [word for word in one.prompt.story.objects if word != answer]
    return encoder.answer_tokens([answer, *others])
