"""Measure the requests of position-free discovery; the workbench's store has all finished steps.

**Crossings** are the tokens by which information passes from one part of a prompt to a later one.

A prompt has four parts: context, swap, question, readout. In the paper one group carries information from each of the
first three to the next (E, D, C), at a label. The search assumes neither. So all its nodes in one part are senders and
those in later parts receivers, in exact path patching as in every step of the search
(`rebinding.experiments.search.search`). The loss of score is summed by the token of the sender. Both signs count: a
head that works against the answer lowers the sum of its token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from rebinding.evidence import Evidence, PromptSet
from rebinding.experiments.ablation import Ablation, measure_ablation
from rebinding.experiments.prompts import EncodedPrompts
from rebinding.experiments.search.graph import Graph, Node, part_of
from rebinding.experiments.search.pairs import RecordedPairs, SearchPairs, pairs_of, record_pairs
from rebinding.experiments.search.request import (
    CROSSINGS,
    NOISE,
    Crossings,
    Losses,
    SearchedCircuit,
    SearchSettings,
    Step,
    search_prompts,
)
from rebinding.experiments.search.search import Search, step_rows
from rebinding.models import ModelError
from rebinding.paper.circuit import depth
from rebinding.surgery import TorchSurgeon
from rebinding.task.prompts import Encoded, Encoder
from rebinding.verdicts import GateFailed, require, requirement

if TYPE_CHECKING:
    from rebinding.experiments.workbench import Workbench


LATER = ("question", "readout")
SWAP_LABELS = ("swap_first", "swap_second", "swap_asked", "swap_partner")
CONTEXT_LABELS = ("context_box", "context_asked", "context_partner")


@dataclass(frozen=True)
class Crossing:
    """A crossing from one part to others; `expected` are the names of the tokens that carry it in the paper."""

    name: str
    sender: str
    receivers: tuple[str, ...]
    expected: tuple[str, ...]


CROSSED = (
    Crossing("context to swap", "context", ("swap",), CONTEXT_LABELS),
    Crossing("swap to question", "swap", ("question",), SWAP_LABELS),
    Crossing("question to readout", "question", ("readout",), ("question_box",)),
    Crossing("swap to all that is later", "swap", LATER, SWAP_LABELS),
)


def crossings(search: Search, nodes: Sequence[Node]) -> Evidence:
    """Measure every crossing on the prompts of a search, which need not be those on which the nodes were found."""
    ids = search.pairs.ids
    frames = []
    for crossing in CROSSED:
        senders = [node for node in nodes if part_of(node) == crossing.sender]
        receivers = [node for node in nodes if part_of(node) in crossing.receivers]
        losses = _losses(search, senders, receivers, crossing.expected)
        rows = pd.DataFrame({"prompt": ids, "crossing": crossing.name}).join(losses, on="prompt")
        frames.append(rows.fillna({"expected_tokens": 0.0, "other_tokens": 0.0}))
    return CROSSINGS.evidence(pd.concat(frames, ignore_index=True), {"nodes": [list(node) for node in nodes]})


def _losses(
    search: Search, senders: Sequence[Node], receivers: Sequence[Node], expected: Collection[str]
) -> pd.DataFrame:
    """The loss by prompt without senders at the expected tokens, and without all others. A prompt without effective
    senders has no line."""
    below = [node for node in senders if any(depth(node) < depth(receiver) for receiver in receivers)]
    nothing = pd.DataFrame(columns=["expected_tokens", "other_tokens"], dtype=float)
    if not below:
        return nothing
    rows = search.step(receivers, below).rows
    is_expected = rows["place"].str.partition("[")[0].isin(list(expected))
    loss = rows["before"] - rows["after"]
    sides = {
        name: loss.where(side, 0.0) for name, side in (("expected_tokens", is_expected), ("other_tokens", ~is_expected))
    }
    return pd.DataFrame(sides).groupby(rows["prompt"]).sum()


REMOTE_MODEL = "position-free discovery needs the model's layers on this machine, and this model runs on a server"


class RequestedSteps:
    """Steps of a search as requests to a workbench, whose store has all finished steps."""

    def __init__(self, bench: Workbench, prompts: PromptSet, size: int) -> None:
        pairs = bench.prompts.encode(prompts)
        starts = range(0, len(prompts.ids), size)
        self._bench = bench
        self._blocks = [bench.prompts.add(pairs.part(start, min(start + size, len(prompts.ids)))) for start in starts]

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: SearchSettings
    ) -> Evidence:
        senders = None if allowed is None else tuple(allowed)
        return self._bench.get(Step(self._blocks[block], tuple(receivers), senders, settings))

    def losses(self, block: int) -> Evidence:
        return self._bench.get(Losses(self._blocks[block]))


def search_on(
    bench: Workbench,
    prompts: PromptSet,
    settings: SearchSettings,
    deadline: float = float("inf"),
    report: Callable[[str], object] = lambda line: None,
) -> Search:
    """A search on clean and noise prompts; `report` gets a line of progress after each step."""
    pairs = search_pairs(bench.prompts.encoder, bench.prompts.encode(prompts))
    return Search(pairs, settings, RequestedSteps(bench, prompts, settings.block), deadline, report)


def search_model(bench: Workbench, name: str) -> Graph:
    """The graph that the search finds on this model; the workbench's store has all finished steps."""
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise ModelError(f"{name}: {REMOTE_MODEL}")
    stories = bench.prompts.design("counterbalanced")
    return search_on(bench, search_prompts(bench.prompts, stories), SearchSettings()).graph(
        {"design": stories.name, "noise": NOISE}
    )


def measure_step(bench: Workbench, request: Step) -> Evidence:
    recorded_pairs = _recorded_pairs(bench, request.prompts, mlps=request.settings.mlps)
    return step_rows(recorded_pairs, request.receivers, request.allowed, request.settings)


def measure_losses(bench: Workbench, request: Losses) -> Evidence:
    return _recorded_pairs(bench, request.prompts).losses()


def measure_crossings(bench: Workbench, request: Crossings) -> Evidence:
    """Measure by which tokens information passes between parts of the prompt."""
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise GateFailed(requirement("runs_here", False, REMOTE_MODEL))
    nodes = search_on(bench, request.searched, request.settings).nodes()
    return crossings(search_on(bench, request.prompts, request.settings), nodes)


def measure_searched_circuit(bench: Workbench, request: SearchedCircuit) -> Evidence:
    """Search, then ablate all heads that were not found. All nodes are one circuit; their group letters do not
    matter."""
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise GateFailed(requirement("runs_here", False, REMOTE_MODEL))
    nodes = search_on(bench, request.searched, request.settings).nodes()
    n = len(request.searched.ids)
    detail = (
        f"position-free discovery on {n} prompts found no head with a sure effect; at least one is needed (try more"
        " --samples)"
    )
    require(requirement("circuit_found", bool(nodes), detail))
    heads = Graph(tuple(nodes), ()).circuit().heads
    ablation = Ablation(request.prompts, request.means, heads, "random", request.draws, "role_and_layer")
    evidence = measure_ablation(bench, ablation)
    return request.KIND.evidence(evidence.rows, {**evidence.settings, "nodes": [list(node) for node in nodes]})


def _recorded_pairs(bench: Workbench, prompts: PromptSet, *, mlps: bool = False) -> RecordedPairs:
    """The recorded pairs, shared by all steps."""
    surgeon = bench.surgeon
    assert isinstance(surgeon, TorchSurgeon), REMOTE_MODEL
    pairs = search_pairs(bench.prompts.encoder, bench.prompts.encode(prompts))
    return bench.get_or_compute((RecordedPairs, prompts, mlps), lambda: record_pairs(surgeon, pairs, mlps=mlps))


def search_pairs(encoder: Encoder, encoded: EncodedPrompts) -> SearchPairs:
    """Encoded clean and noise prompts as pairs of a search, with the answer tokens of the clean ones."""
    objects = [story_answers(encoder, prompt) for prompt in encoded.prompts]
    return pairs_of(encoded.request.ids, encoded.prompts, encoded.counterfactuals, objects)


def story_answers(encoder: Encoder, encoded: Encoded) -> tuple[int, ...]:
    """The answer tokens of a story's objects, the right one first."""
    answer = encoded.prompt.answer
    others = [word for word in encoded.prompt.story.objects if word != answer]
    return encoder.answer_tokens([answer, *others])
