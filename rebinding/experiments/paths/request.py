"""What can be requested of path patching, and its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Kind, OnPrompts, PromptSet
from rebinding.evidence.request import Facet
from rebinding.experiments.paths.patching import Component
from rebinding.experiments.prompts import BALANCED_ID, DISCOVERY_ID, Prompts
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.numbers import Group
from rebinding.paper.procedure import CircuitConventions, ProcedureName
from rebinding.surgery.sites import Scope
from rebinding.task.designs import DesignName
from rebinding.task.strata import stratum
from rebinding.task.text import Prompt

OF_ANSWER = ("logit", "p", "lead")
"""What path patching looks at: the answer's logit, its probability, and its logit less the other objects' mean."""
PATHS = Kind(
    "paths",
    (
        "prompt",
        "stratum",
        "layer",
        "head",
        *(f"{name}_{run}" for run in ("orig", "patch") for name in OF_ANSWER),
        "moved",
    ),
    edits=("prompt",),
)
"""`stratum` is the prompt's (`rebinding.task.strata`), its numbers joined by points."""
Frozen: TypeAlias = Literal["all", "none"]


@dataclass(frozen=True)
class Stage:
    """Senders at a role, receivers with a component at a role, and how many senders are kept as the group.

    `receivers` names the group found by an earlier stage; None stands for the logits.
    """

    group: Group
    sender: str
    receivers: Group | None
    component: Component | None
    at: str | None
    keep: int

    def __post_init__(self) -> None:
        if (self.receivers is None) != (self.component is None) or (self.receivers is None) != (self.at is None):
            raise ValueError(
                f"stage {self.group}: receivers, component and at go together; leave all three out to read the logits"
            )


PAPER: tuple[Stage, ...] = (
    Stage("A", "readout", None, None, None, 50),
    Stage("B", "readout", "A", "q", "readout", 50),
    Stage("C", "question_box", "B", "v", "question_box", 25),
    Stage("D", "swap_partner", "C", "kv", "swap_partner", 10),
    Stage("E", "context_partner", "D", "v", "context_partner", 10),
)
"""The paper's five stages. D reads C's keys and values at the swap label: see `PAPER_LITERAL`."""
PAPER_LITERAL: tuple[Stage, ...] = (*PAPER[:3], Stage("D", "swap_partner", "C", "q", "question_box", 10), PAPER[4])
"""The paper's words: D acts on C's query at the question box. Frozen, nothing carries a value from one token to the
other, so every score of this D is exactly zero; it is positive only through heads in between (`frozen="none"`)."""
STATIC_STAGES: tuple[Stage, ...] = (
    Stage("A", "readout", None, None, None, 68),
    Stage("B", "readout", "A", "q", "readout", 28),
    Stage("C", "question_box", "B", "v", "question_box", 40),
    Stage("D", "context_asked", "C", "v", "context_asked", 5),
)
"""The stages of the circuit for static entity tracking on which the paper's groups are modelled: value fetchers,
position transmitters, position detectors, structure readers."""


@dataclass(frozen=True)
class PathSettings:
    """What the literature mixes up: what is frozen, and whether k and v mean a KV group or one query head."""

    frozen: Frozen = "all"
    scope: Scope = "head"
    block: int = 16


STAGE_BY_NAME: dict[str, Stage] = {stage.group: stage for stage in PAPER} | {"D literal": PAPER_LITERAL[3]}
STAGES_BY = {"keys_values": PAPER, "query": PAPER_LITERAL}
"""The five stages, by what of C hears D."""


@dataclass(frozen=True)
class Paths(OnPrompts):
    """Path patching of one stage: heads as senders to the given receivers."""

    KIND: ClassVar[Kind] = PATHS
    stage: Stage
    receivers: tuple[Head, ...]
    how: PathSettings
    senders: tuple[Head, ...] | None = None
    """All heads, where it is not said which."""

    @property
    def block(self) -> int:
        return self.how.block

    @property
    def facets(self) -> Mapping[str, Facet]:
        literal = f"{self.stage.group} to {self.stage.component or 'logits'} at {self.stage.at or 'readout'}"
        told: dict[str, Facet] = {
            "stage": literal,
            "senders": "all" if self.senders is None else len(self.senders),
            "receivers": len(self.receivers),
            "noise": self.prompts.pairing[-1],
        }
        return {**told, "frozen": self.how.frozen, **self.prompts.facets}


def conventions_of_plant(
    conventions: CircuitConventions, procedure: ProcedureName, means: DesignName = "counterbalanced"
) -> CircuitConventions:
    """The conventions of a paper about a planted model. Its D sits at the second label of a swap, and its means mostly
    know no slot; and a stage that keeps 50 heads keeps most of what a plant has, so it keeps those that count."""
    if procedure == "controlled":
        return replace(conventions, design="partner_second")
    return replace(
        conventions,
        design="partner_second",
        noise=("independent",),
        frozen=("all",),
        d_heard_by=("keys_values",),
        scope="head",
        select="negative",
        means=means,
    )


def draw_noise_pairs(prompts: Prompts, conventions: CircuitConventions, n: int, first: int | None = None) -> PromptSet:
    """Clean and noise prompts for path patching: those of discovery, or others from id `first` on."""
    drawn, (kind, *_) = prompts.design(conventions.design), conventions.noise
    if conventions.design != "counterbalanced":
        start = DISCOVERY_ID if first is None else first
        return prompts.draw(drawn, range(start, start + n), ("noise", kind))
    roles = [role for stage in PAPER for role in (stage.sender, stage.at) if role is not None]
    return prompts.draw_with(drawn, BALANCED_ID if first is None else first, n, roles, ("noise", kind))


def request_paths(
    pairs: PromptSet,
    stage: Stage,
    receivers: Sequence[Head],
    conventions: CircuitConventions,
    senders: Sequence[Head] | None = None,
) -> Paths:
    """Heads as senders to the given receivers, in the first of the ways that it may have been done."""
    sending = None if senders is None else tuple(sorted(senders))
    return Paths(
        pairs, stage, tuple(sorted(receivers)), PathSettings(conventions.frozen[0], conventions.scope), sending
    )


def request_links(
    prompts: Prompts, circuit: Circuit, conventions: CircuitConventions, name: str, n: int
) -> dict[str, Paths]:
    """The heads of a group as senders to the circuit's own receivers, in every way that it may have been done, on
    prompts that discovery did not see.

    What of C receives D is said by the stage's name. What C's queries receive from another token is exactly 0 while
    other heads are frozen, whatever the model: there nothing is."""
    stage = STAGE_BY_NAME[name]
    if name == "D literal":
        conventions = replace(conventions, frozen=("none",))
    receivers, senders = circuit.group(stage.receivers) if stage.receivers else (), circuit.group(stage.group)
    ways = replace(conventions, d_heard_by=("keys_values",)).candidates
    return {
        said: request_paths(draw_noise_pairs(prompts, one, n, prompts.evaluation), stage, receivers, one, senders)
        for said, one in ways.items()
    }


def written(prompt: Prompt) -> str:
    """The prompt's stratum as a table holds it."""
    return ".".join(map(str, stratum(prompt)))
