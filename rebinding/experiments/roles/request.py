"""Requests of section 4.2: attention-pattern patching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Kind, OnPrompts, PromptSet
from rebinding.evidence.request import Facet
from rebinding.experiments.prompts import Stories
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.paper.procedure import RolesConventions
from rebinding.surgery import Site
from rebinding.task.designs import Design, DesignName
from rebinding.task.prompts import AnswerRule, Encoded

ROLES = Kind(
    "roles",
    (
        *("prompt", "answer_slot", "word", "text", "token", "group", "layer", "head"),
        *("before", "after", "counterfactual", "future_mass", "relative_change"),
    ),
    edit_columns=(),
)
RANDOM_ROLES = Kind(
    "random groups",
    (
        *("prompt", "answer_slot", "word", "text", "token", "draw", "layer", "head"),
        *("before", "after", "counterfactual", "future_mass", "relative_change"),
    ),
)
WORDS = ("answer", "new_object", "pointed_object")
WHOLE_GROUP = -1
"""Layer and head of the rows in which all heads of a group are patched together."""
RANDOM_GROUPS = 10
"""Random groups to compare a group of the circuit with."""
RolesMode: TypeAlias = Literal["paper", "published", "own_role"]
Future: TypeAlias = Literal["keep", "mask"]
RolesPlace: TypeAlias = tuple[Site, str]
MODES: Mapping[RolesMode, Mapping[Group, RolesPlace]] = MappingProxyType(
    {
        "paper": dict.fromkeys(ROLE_OF_GROUP, ("pattern", "readout")),
        "published": {group: ("z" if group == "A" else "pattern", role) for group, role in ROLE_OF_GROUP.items()},
        "own_role": {group: ("pattern", role) for group, role in ROLE_OF_GROUP.items()},
    }
)
"""What is patched, and where, for each group. `paper`: patterns at the readout, as the text says. `published`: the
outputs of A, and the patterns of the others at their own tokens. `own_role`: the same with patterns for A too."""
Counterfactual: TypeAlias = Literal["pointer", "content_control"]
"""The pairs: in a pointer pair the answer's place changes, in a content control the object in it."""


@dataclass(frozen=True)
class RolePair:
    """An encoded original and its counterfactual."""

    id: int
    original: Encoded
    counterfactual: Encoded

    def words(self) -> tuple[str, str, str]:
        """The measured words, in the order of `WORDS`."""
        story, question = self.original.prompt.story, self.original.prompt.question
        return self.original.prompt.answer, self.counterfactual.prompt.answer, story.objects[story.slot(question)]

    @property
    def answer_slot(self) -> int:
        """The slot of the original's answer; it distinguishes the two directions of an id."""
        return self.original.prompt.story.objects.index(self.original.prompt.answer)


SINGLE_HEADS = "groups and single heads"


@dataclass(frozen=True)
class Interchange(OnPrompts):
    """Patch every group of a circuit with its attention in a counterfactual."""

    KIND: ClassVar[Kind] = ROLES
    counterfactual: Counterfactual
    mode: RolesMode
    future: Future
    answers: AnswerRule
    groups: tuple[tuple[Group, tuple[Head, ...]], ...]
    single_heads: bool = False
    """Patch every head alone, too."""

    @property
    def edit_columns(self) -> tuple[str, ...] | None:
        """In a pointer pair, outputs, or patterns at a group's own token, must change. In a content control the pattern
        of a pointing head need not change. With patterns at the readout no change is a finding and not a no-op edit:
        the heads of a model may attend to the same place whatever the question."""
        return None if self.counterfactual == "content_control" or self.mode == "paper" else self.KIND.edit_columns

    @property
    def direction(self) -> str:
        """How the answer's slot moves: `code`, `text`, or `both`."""
        return self.prompts.pairing[1]

    @property
    def facets(self) -> Mapping[str, Facet]:
        facets = {"pairs": self.counterfactual, "mode": self.mode, "direction": self.direction}
        return {**facets, **({"patched": SINGLE_HEADS} if self.single_heads else {}), **self.prompts.facets}


@dataclass(frozen=True)
class RandomInterchange(OnPrompts):
    """Patch random groups with their attention in a counterfactual, at the token of a group of the circuit. They have
    as many heads of each layer as that group, and none of its heads."""

    KIND: ClassVar[Kind] = RANDOM_ROLES
    counterfactual: Counterfactual
    mode: RolesMode
    future: Future
    answers: AnswerRule
    group: Group
    heads: tuple[Head, ...]
    draws: int

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"pairs": self.counterfactual, "mode": self.mode, "group": self.group, **self.prompts.facets}


def roles_stories(prompts: Stories, conventions: RolesConventions, chosen: DesignName) -> Design:
    """The stories of a procedure; `chosen` is the design of the run, which replaces the published one."""
    name = chosen if conventions.design == "published" else conventions.design
    held_out = name == "counterbalanced" and conventions.ids == "held_out"
    return prompts.design(name, split="evaluation" if held_out else None)


def request_interchange(
    prompts: Stories,
    circuit: Circuit,
    design: Design,
    counterfactual: Counterfactual,
    n: int,
    conventions: RolesConventions,
    cut: int = 0,
) -> Interchange:
    """Request the patch of every group of a circuit, in prompts without their last `cut` tokens."""
    groups = tuple((group, circuit.group(group)) for group in MODES[conventions.places] if circuit.group(group))
    pairs = interchange_pairs(prompts, design, counterfactual, n, conventions, cut)
    return Interchange(pairs, counterfactual, conventions.places, conventions.future, conventions.answers, groups)


def request_single_heads(
    prompts: Stories,
    design: Design,
    circuit: Circuit,
    n: int,
    *,
    groups: Sequence[Group],
    conventions: RolesConventions,
    cut: int = 0,
) -> Interchange:
    """Request the patch of some groups of a circuit, and of each of their heads alone, in pointer pairs."""
    chosen = Circuit(tuple(head for head in circuit.heads if head.group in groups))
    stories = roles_stories(prompts, conventions, design.name)
    return replace(request_interchange(prompts, chosen, stories, "pointer", n, conventions, cut), single_heads=True)


def request_random_interchange(
    prompts: Stories,
    design: Design,
    circuit: Circuit,
    n: int,
    *,
    group: Group,
    conventions: RolesConventions,
    cut: int = 0,
) -> RandomInterchange:
    """Request the patch of random groups like one of the circuit, in the same pairs as the group itself."""
    stories = roles_stories(prompts, conventions, design.name)
    pairs = interchange_pairs(prompts, stories, "pointer", n, conventions, cut)
    heads = circuit.group(group)
    return RandomInterchange(
        pairs, "pointer", conventions.places, conventions.future, conventions.answers, group, heads, RANDOM_GROUPS
    )


def interchange_pairs(
    prompts: Stories,
    design: Design,
    counterfactual: Counterfactual,
    n: int,
    conventions: RolesConventions,
    cut: int = 0,
) -> PromptSet:
    """The pairs of a procedure, without their last `cut` tokens."""
    first = prompts.evaluation if conventions.ids == "held_out" else prompts.skip_prompts
    structure_only = counterfactual == "pointer" and conventions.pointer == "structure"
    pairing = ("structure_only_pointer" if structure_only else counterfactual, conventions.direction)
    return prompts.draw(design, range(first, first + n), pairing, cut=cut)
