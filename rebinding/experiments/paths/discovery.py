"""From scores to a circuit, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from rebinding.evidence import Evidence, PromptSet
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PAPER, STAGES_BY, Paths, PathSettings, Stage, request_paths
from rebinding.experiments.paths.summary import LEAST, Scale, Selection, _selected, scores
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.procedure import CircuitConventions
from rebinding.surgery import Surgeon

Ask: TypeAlias = Callable[[Paths], Evidence]


@dataclass(frozen=True)
class Discovery:
    """The circuit, and for every stage its evidence (none where it had no receivers)."""

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
    least: float | None = None,
    distinct: bool = False,
    described: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order on some prompts."""
    settings = settings or PathSettings()
    about = {**asdict(settings), "prompts": len(pairs.ids), **(described or {})}
    return discover_by(
        lambda stage, receivers: score_stage(surgeon, pairs, stage, receivers, settings=settings),
        stages,
        scale=scale,
        rule=rule,
        least=least,
        distinct=distinct,
        described=about,
    )


def discover_by(
    score: Callable[[Stage, Sequence[Head]], Evidence],
    stages: Sequence[Stage] = PAPER,
    *,
    scale: Scale = "logit",
    rule: Selection = "sure",
    least: float | None = None,
    distinct: bool = False,
    described: dict[str, Any] | None = None,
) -> Discovery:
    """Run the stages in order; a stage whose receivers are empty gives an empty group.

    With `distinct`, heads taken by an earlier stage are not taken again. As published, a head found in both A and B
    belongs to B (the two act at the same token); other heads may act in several groups at their roles.
    """
    least = LEAST[scale] if least is None else least
    groups: dict[str, list[Head]] = {}
    evidence: dict[str, Evidence] = {}
    for stage in stages:
        receivers = groups[stage.receivers] if stage.receivers else []
        if stage.receivers and not receivers:
            groups[stage.group] = []
            continue
        found = score(stage, receivers)
        earlier = tuple(head for heads in groups.values() for head in heads) if distinct else ()
        groups[stage.group] = list(_selected(found, scale, stage.keep, rule, least, earlier))
        evidence[stage.group] = found
    heads = tuple(
        CircuitHead(stage.group, layer, head, stage.sender)
        for number, stage in enumerate(stages)
        for layer, head in groups[stage.group]
        if not _taken_later(stages[number + 1 :], groups, stage, (layer, head))
    )
    how = {
        "stages": [asdict(stage) for stage in stages],
        "scale": scale,
        "rule": rule,
        "least": least,
        "distinct": distinct,
    }
    return Discovery(Circuit(heads, {**how, **(described or {})}), evidence)


def _taken_later(later: Sequence[Stage], groups: dict[str, list[Head]], stage: Stage, head: Head) -> bool:
    """Whether a later stage with the same sender role has the head too: it is then that one's."""
    return any(other.sender == stage.sender and head in groups[other.group] for other in later)


def discover_circuit(pairs: PromptSet, conventions: CircuitConventions, ask: Ask) -> Discovery:
    """The circuit that path patching finds, each stage asked for as evidence of its own."""
    about = {"design": pairs.design, "noise": pairs.pairing[-1], "prompts": len(pairs.ids)}
    return discover_by(
        lambda stage, heads: ask(request_paths(pairs, stage, heads, conventions)),
        STAGES_BY[conventions.d_heard_by[0]],
        scale=conventions.score,
        rule=conventions.select,
        described=about,
    )


def smallest_fall(found: Discovery) -> float | None:
    """The least fall of the answer's lead, in logits, for which a head was kept; none, where no head was."""
    falls = []
    for group, evidence in found.evidence.items():
        table = scores(evidence, "logit").set_index(["layer", "head"])["score"]
        falls += [-float(table.loc[head]) for head in found.circuit.group(group)]
    return min(falls, default=None)
