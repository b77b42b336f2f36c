"""Find a circuit: select the heads of each stage of path patching by their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from rebinding.evidence import Evidence, PromptSet
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PAPER, STAGES_BY, Paths, PathSettings, Stage, request_paths
from rebinding.experiments.paths.summary import MIN_EFFECT, Scale, Selection, _selected, scores
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.procedure import CircuitConventions
from rebinding.surgery import Surgeon

Ask: TypeAlias = Callable[[Paths], Evidence]


@dataclass(frozen=True)
class Discovery:
    """The circuit, and the evidence of every stage that had receivers."""

    circuit: Circuit
    evidence: dict[str, Evidence]


def discover(
    surgeon: Surgeon,
    pairs: NoisePairs,
    stages: Sequence[Stage] = PAPER,
    *,
    settings: PathSettings | None = None,
    scale: Scale = "logit",
    rule: Selection = "sure",
    min_effect: float | None = None,
    distinct: bool = False,
    extra_settings: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order on clean and noise prompts."""
    settings = settings or PathSettings()
    about = {**asdict(settings), "prompts": len(pairs.ids), **(extra_settings or {})}
    return discover_by(
        lambda stage, receivers: score_stage(surgeon, pairs, stage, receivers, settings=settings),
        stages,
        scale=scale,
        rule=rule,
        min_effect=min_effect,
        distinct=distinct,
        extra_settings=about,
    )


def discover_by(
    score: Callable[[Stage, Sequence[Head]], Evidence],
    stages: Sequence[Stage] = PAPER,
    *,
    scale: Scale = "logit",
    rule: Selection = "sure",
    min_effect: float | None = None,
    distinct: bool = False,
    extra_settings: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order; a stage without receivers gives an empty group.

    With `distinct`, no stage selects a head of an earlier one. As published, a head found in both A and B belongs to B
    (the two act at the same token); other heads may act in several groups, each at its role.
    """
    min_effect = MIN_EFFECT[scale] if min_effect is None else min_effect
    groups: dict[str, list[Head]] = {}
    evidence: dict[str, Evidence] = {}
    for stage in stages:
        receivers = groups[stage.receivers] if stage.receivers else []
        if stage.receivers and not receivers:
            groups[stage.group] = []
            continue
        evidence[stage.group] = score(stage, receivers)
        earlier = tuple(head for heads in groups.values() for head in heads) if distinct else ()
        groups[stage.group] = list(_selected(evidence[stage.group], scale, stage.top_k, rule, min_effect, earlier))
    heads = tuple(
        CircuitHead(stage.group, layer, head, stage.sender)
        for number, stage in enumerate(stages)
        for layer, head in groups[stage.group]
        if not _is_in_later_group(stages[number + 1 :], groups, stage, (layer, head))
    )
    settings = {
        "stages": [asdict(stage) for stage in stages],
        "scale": scale,
        "rule": rule,
        "min_effect": min_effect,
        "distinct": distinct,
    }
    return Discovery(Circuit(heads, {**settings, **(extra_settings or {})}), evidence)


def _is_in_later_group(stages: Sequence[Stage], groups: dict[str, list[Head]], stage: Stage, head: Head) -> bool:
    """Whether one of the later `stages` with the same sender role has the head too; the head then belongs to it."""
    return any(later.sender == stage.sender and head in groups[later.group] for later in stages)


def discover_circuit(pairs: PromptSet, conventions: CircuitConventions, ask: Ask) -> Discovery:
    """The circuit that path patching finds; each stage is a request of its own."""
    about = {"design": pairs.design, "noise": pairs.pairing[-1], "prompts": len(pairs.ids)}
    return discover_by(
        lambda stage, heads: ask(request_paths(pairs, stage, heads, conventions)),
        STAGES_BY[conventions.d_received_by[0]],
        scale=conventions.score,
        rule=conventions.select,
        extra_settings=about,
    )


def smallest_fall(discovery: Discovery) -> float | None:
    """The smallest drop of the answer's lead, in logits, among the selected heads; None if there are none."""
    falls = []
    for group, evidence in discovery.evidence.items():
        table = scores(evidence, "logit").set_index(["layer", "head"])["score"]
        falls += [-float(table.loc[head]) for head in discovery.circuit.group(group)]
    return min(falls, default=None)
