"""Position-free discovery on a workbench: each step is a request, and the workbench's store has all finished
steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rebinding.evidence import Evidence, PromptSet
from rebinding.evidence.request import EvidenceSource
from rebinding.experiments.circuit.measure import measure_ablation
from rebinding.experiments.circuit.request import Ablation
from rebinding.experiments.prompts import EncodedPrompts
from rebinding.experiments.search.crossings import crossings
from rebinding.experiments.search.pairs import Pairs, pairs_of
from rebinding.experiments.search.recorded_pairs import RecordedPairs, record_pairs
from rebinding.experiments.search.request import (
    NOISE,
    Crossings,
    Losses,
    SearchedCircuit,
    Settings,
    Step,
    search_prompts,
)
from rebinding.experiments.search.search import Search, step_rows
from rebinding.experiments.workbench import Workbench, measures
from rebinding.models import ModelError
from rebinding.paper.graph import Graph, Node
from rebinding.surgery import TorchSurgeon
from rebinding.task.prompts import Encoded, Encoder
from rebinding.verdicts import GateFailed, require, requirement

REMOTE_MODEL = "position-free discovery needs the model's layers on this machine, and this model runs on a server"


class RequestedSteps:
    """Steps of a search as requests to a workbench, whose store has all finished steps."""

    def __init__(self, bench: Workbench, prompts: PromptSet, size: int) -> None:
        pairs = bench.prompts.encode(prompts)
        starts = range(0, len(prompts.ids), size)
        self._bench = bench
        self._blocks = [bench.prompts.add(pairs.part(start, min(start + size, len(prompts.ids)))) for start in starts]

    def step(
        self, block: int, receivers: Sequence[Node], allowed: Sequence[Node] | None, settings: Settings
    ) -> Evidence:
        senders = None if allowed is None else tuple(allowed)
        return self._bench.get(Step(self._blocks[block], tuple(receivers), senders, settings))

    def losses(self, block: int) -> Evidence:
        return self._bench.get(Losses(self._blocks[block]))


def search_on(
    bench: Workbench,
    prompts: PromptSet,
    settings: Settings,
    deadline: float = float("inf"),
    report: Callable[[str], object] = lambda line: None,
) -> Search:
    """A search on clean and noise prompts; `report` gets a line of progress after each step."""
    pairs = search_pairs(bench.prompts.encoder, bench.prompts.encode(prompts))
    return Search(pairs, settings, RequestedSteps(bench, prompts, settings.block), deadline, report)


def search_model(bench: EvidenceSource, name: str) -> Graph:
    """The graph that the search finds on this model; the workbench's store has all finished steps."""
    if not isinstance(bench, Workbench) or not isinstance(bench.surgeon, TorchSurgeon):
        raise ModelError(f"{name}: {REMOTE_MODEL}")
    stories = bench.prompts.design("counterbalanced")
    return search_on(bench, search_prompts(bench.prompts, stories), Settings()).graph(
        {"design": stories.name, "noise": NOISE}
    )


@measures(Step)
def measure_step(bench: Workbench, request: Step) -> Evidence:
    return step_rows(_recorded_pairs(bench, request.prompts), request.receivers, request.allowed, request.settings)


@measures(Losses)
def measure_losses(bench: Workbench, request: Losses) -> Evidence:
    return _recorded_pairs(bench, request.prompts).losses()


@measures(Crossings)
def measure_crossings(bench: Workbench, request: Crossings) -> Evidence:
    """Measure by which tokens information passes between parts of the prompt."""
    if not isinstance(bench.surgeon, TorchSurgeon):
        raise GateFailed(requirement("runs_here", False, REMOTE_MODEL))
    nodes = search_on(bench, request.searched, request.settings).nodes()
    return crossings(search_on(bench, request.prompts, request.settings), nodes)


@measures(SearchedCircuit)
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


def _recorded_pairs(bench: Workbench, prompts: PromptSet) -> RecordedPairs:
    """The recorded pairs, shared by all steps."""
    surgeon = bench.surgeon
    assert isinstance(surgeon, TorchSurgeon), REMOTE_MODEL
    pairs = search_pairs(bench.prompts.encoder, bench.prompts.encode(prompts))
    return bench.get_or_compute((RecordedPairs, prompts), lambda: record_pairs(surgeon, pairs))


def search_pairs(encoder: Encoder, encoded: EncodedPrompts) -> Pairs:
    """Encoded clean and noise prompts as pairs of a search, with the answer tokens of the clean ones."""
    objects = [story_answers(encoder, prompt) for prompt in encoded.prompts]
    return pairs_of(encoded.request.ids, encoded.prompts, encoded.counterfactuals, objects)


def story_answers(encoder: Encoder, encoded: Encoded) -> tuple[int, ...]:
    """The answer tokens of a story's objects, the right one first."""
    answer = encoded.prompt.answer
    others = [word for word in encoded.prompt.story.objects if word != answer]
    return encoder.answer_tokens([answer, *others])
