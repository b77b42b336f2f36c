"""Requests for path patching, and its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from rebinding.evidence import Kind, OnPrompts, PromptSet
from rebinding.evidence.request import Facet
from rebinding.experiments.path_patching import Component, Frozen
from rebinding.experiments.prompts import BALANCED_ID, Stories, draw_noise_pairs
from rebinding.experiments.random_draws import draw_circuits
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.paper.numbers import Group
from rebinding.paper.procedure import CircuitConventions, ProcedureName
from rebinding.surgery.sites import Scope
from rebinding.task.designs import DesignName
from rebinding.task.prompts import Stratum, stratum
from rebinding.task.text import Prompt

OF_ANSWER = ("logit", "p", "lead")
"""Measures: the answer's logit, its probability, and its logit minus the mean logit of the other objects."""
PATHS = Kind(
    "paths",
    (
        "prompt",
        "stratum",
        "layer",
        "head",
        *(f"{name}_{run}" for run in ("orig", "patch") for name in OF_ANSWER),
        "relative_change",
    ),
    edit_columns=("prompt",),
)
"""`stratum` is the prompt's stratum (`rebinding.task.prompts`), its numbers joined by points."""
SENDER_DRAWS = 5
"""Sets of random senders to compare a group with. Each costs as much as the group itself."""


@dataclass(frozen=True)
class Stage:
    """Senders at a role, receivers with a component at a role, and the most senders of the group.

    `receivers` names the group found by an earlier stage; None stands for the logits.
    """

    group: Group
    sender: str
    receivers: Group | None
    component: Component | None
    at: str | None
    top_k: int

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
"""The paper's words: D acts on C's query at the question box. With frozen attention nothing carries a value from one
token to the other, so every score of this D is exactly zero; it is positive only through heads in between
(`frozen="none"`)."""
STATIC_STAGES: tuple[Stage, ...] = (
    Stage("A", "readout", None, None, None, 68),
    Stage("B", "readout", "A", "q", "readout", 28),
    Stage("C", "question_box", "B", "v", "question_box", 40),
    Stage("D", "context_asked", "C", "v", "context_asked", 5),
)
"""The stages of the circuit for static entity tracking, the model for the paper's groups: value fetchers,
position transmitters, position detectors, structure readers."""


def sizes_before_pruning() -> dict[str, int]:
    """The number of heads that the paper's stages keep at each role."""
    sizes: Counter[str] = Counter()
    for stage in PAPER:
        sizes[stage.sender] += stage.top_k
    return dict(sizes)


@dataclass(frozen=True)
class PathSettings:
    """Where the literature differs: what is frozen, and whether k and v mean a KV group or one query head."""

    frozen: Frozen = "all"
    scope: Scope = "head"
    block: int = 16


STAGE_BY_NAME: dict[str, Stage] = {stage.group: stage for stage in PAPER} | {"D literal": PAPER_LITERAL[3]}
STAGES_BY = {"keys_values": PAPER, "query": PAPER_LITERAL}
"""The five stages, by the component of C that receives D."""


@dataclass(frozen=True)
class Paths(OnPrompts):
    """Path patching of one stage: heads as senders to the given receivers."""

    KIND: ClassVar[Kind] = PATHS
    stage: Stage
    receivers: tuple[Head, ...]
    settings: PathSettings
    senders: tuple[Head, ...] | None = None
    """None: all heads."""

    @property
    def block(self) -> int:
        return self.settings.block

    @property
    def block_is_large(self) -> bool:
        return self.senders is None

    @property
    def facets(self) -> Mapping[str, Facet]:
        literal = f"{self.stage.group} to {self.stage.component or 'logits'} at {self.stage.at or 'readout'}"
        facets: dict[str, Facet] = {
            "stage": literal,
            "senders": "all" if self.senders is None else len(self.senders),
            "receivers": len(self.receivers),
            "noise": self.prompts.pairing[-1],
        }
        return {**facets, "frozen": self.settings.frozen, **self.prompts.facets}


def conventions_of_plant(
    conventions: CircuitConventions, procedure: ProcedureName, means: DesignName = "counterbalanced"
) -> CircuitConventions:
    """The conventions of a paper about a planted model. Its D acts at the second label of a swap, and its means mostly
    carry no slot. A stage that keeps 50 heads would keep most heads of a plant, so it keeps those with an effect."""
    if procedure == "controlled":
        return replace(conventions, design="partner_second")
    return replace(
        conventions,
        design="partner_second",
        noise=("independent",),
        frozen=("all",),
        d_received_by=("keys_values",),
        scope="head",
        select="negative",
        means=means,
    )


def request_paths(
    pairs: PromptSet,
    stage: Stage,
    receivers: Sequence[Head],
    conventions: CircuitConventions,
    senders: Sequence[Head] | None = None,
) -> Paths:
    """Request path patching of some senders (all by default) to the receivers, by the first candidate convention."""
    chosen = None if senders is None else tuple(sorted(senders))
    return Paths(pairs, stage, tuple(sorted(receivers)), PathSettings(conventions.frozen[0], conventions.scope), chosen)


def random_senders(senders: Sequence[CircuitHead], heads: Sequence[Head]) -> list[tuple[Head, ...]]:
    """Sets of random senders to compare some with: as many of the model's other heads in each layer."""
    draws = draw_circuits(Circuit(tuple(senders)), heads, draws=SENDER_DRAWS, match="role_and_layer", exclude=True)
    return [tuple((head.layer, head.head) for head in draw.heads) for draw in draws]


def request_links(
    prompts: Stories, circuit: Circuit, conventions: CircuitConventions, name: str, n: int, heads: Sequence[Head]
) -> dict[str, Paths]:
    """Request the heads of a group, and random ones of the model's `heads`, as senders to the circuit's own receivers,
    under every candidate convention, on prompts that discovery did not use.

    The stage's name says which component of C receives D. With other heads frozen, C's queries receive exactly 0 from
    another token, whatever the model; so "D literal" freezes none.
    """
    stage = STAGE_BY_NAME[name]
    if name == "D literal":
        conventions = replace(conventions, frozen=("none",))
    receivers = circuit.group(stage.receivers) if stage.receivers else ()
    of_group = circuit.groups[stage.group]
    senders = {head for draw in random_senders(of_group, heads) for head in draw} | {*circuit.group(stage.group)}
    candidates = replace(conventions, d_received_by=("keys_values",)).candidates
    return {
        label: request_paths(
            draw_noise_pairs(prompts, option, n, prompts.evaluation), stage, receivers, option, tuple(senders)
        )
        for label, option in candidates.items()
    }


def write_stratum(prompt: Prompt) -> str:
    """The prompt's stratum as text for a table."""
    return join_stratum(stratum(prompt))


def join_stratum(numbers: Stratum) -> str:
    """A stratum as text."""
    return ".".join(map(str, numbers))


STATIC_PAIRS = 36
"""Pairs of path patching without a swap: enough for an effect per head, without links."""


def request_static_paths(
    prompts: Stories, boxes: int, stage: Stage, receivers: Sequence[Head], conventions: CircuitConventions, n: int
) -> Paths:
    """Request all heads as senders in stories without a swap, each paired with another story."""
    stories = prompts.design("counterbalanced", boxes=boxes, operations=0)
    roles = sorted({role for step in STATIC_STAGES for role in (step.sender, step.at) if role is not None})
    pairs = prompts.draw_with(stories, BALANCED_ID, n, roles, ("noise", "independent"))
    return request_paths(pairs, stage, receivers, conventions)
