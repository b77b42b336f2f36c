"""What can be requested of section 4.2: attention-pattern patching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Kind, OnPrompts, PromptSet
from rebinding.evidence.request import Facet
from rebinding.experiments.prompts import Prompts
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.paper.procedure import RolesConventions
from rebinding.surgery import Site
from rebinding.task.answers import AnswerRule
from rebinding.task.designs import Design, DesignName
from rebinding.task.prompts import Encoded

ROLES = Kind(
    "roles",
    (
        *("prompt", "answer_slot", "word", "text", "token", "group", "layer", "head"),
        *("before", "after", "counterfactual", "future_mass", "moved"),
    ),
    edits=(),
)
RANDOM_ROLES = Kind(
    "random groups",
    (
        *("prompt", "answer_slot", "word", "text", "token", "draw", "layer", "head"),
        *("before", "after", "counterfactual", "future_mass", "moved"),
    ),
)
WORDS = ("answer", "new_object", "pointed_object")
WHOLE_GROUP = -1
"""Layer and head of the rows in which all heads of a group are patched together."""
RANDOM_GROUPS = 10
"""Random groups that one of the circuit is held against."""
Mode: TypeAlias = Literal["paper", "published", "own_role"]
Future: TypeAlias = Literal["keep", "mask", "refuse"]
Place: TypeAlias = tuple[Site, str]
MODES: Mapping[Mode, Mapping[Group, Place]] = MappingProxyType(
    {
        "paper": dict.fromkeys(ROLE_OF_GROUP, ("pattern", "readout")),
        "published": {group: ("z" if group == "A" else "pattern", role) for group, role in ROLE_OF_GROUP.items()},
        "own_role": {group: ("pattern", role) for group, role in ROLE_OF_GROUP.items()},
    }
)
"""What is patched, and where, for each group. `paper`: patterns at the readout, as the text says. `published`: the
outputs of A, and the patterns of the others at their own tokens. `own_role`: the same with patterns for A too."""
Counterfactual: TypeAlias = Literal["pointer", "content_control"]
"""Which pairs: the answer's place changes, or the object in it."""


@dataclass(frozen=True)
class RolePair:
    """An original and its counterfactual as the model sees them."""

    id: int
    original: Encoded
    counterfactual: Encoded

    def words(self) -> tuple[str, str, str]:
        """The measured words, in the order of `WORDS`."""
        story, question = self.original.prompt.story, self.original.prompt.question
        return self.original.prompt.answer, self.counterfactual.prompt.answer, story.objects[story.slot(question)]

    @property
    def answer_slot(self) -> int:
        """Where the original's answer stands: it tells the two directions of an id apart."""
        return self.original.prompt.story.objects.index(self.original.prompt.answer)


@dataclass(frozen=True)
class Interchange(OnPrompts):
    """Every group of a circuit gets the attention that it has in a counterfactual."""

    KIND: ClassVar[Kind] = ROLES
    counterfactual: Counterfactual
    mode: Mode
    future: Future
    answers: AnswerRule
    groups: tuple[tuple[Group, tuple[Head, ...]], ...]

    @property
    def edits(self) -> tuple[str, ...] | None:
        """Outputs, or patterns at a group's own token, must move in a pointer pair. In a content control nothing that
        points looks elsewhere; and a model whose heads at the readout look at the same place whatever is asked keeps
        their patterns, which is a finding and no edit that did nothing."""
        return None if self.counterfactual == "content_control" or self.mode == "paper" else self.KIND.edits

    @property
    def direction(self) -> str:
        """How the answer's slot moves: `code`, `text`, or `both`."""
        return self.prompts.pairing[1]

    @property
    def facets(self) -> Mapping[str, Facet]:
        told = {"pairs": self.counterfactual, "mode": self.mode, "direction": self.direction}
        return {**told, **self.prompts.facets}


@dataclass(frozen=True)
class RandomInterchange(OnPrompts):
    """Random groups get the attention that they have in a counterfactual, where a group of the circuit stands: as many
    heads of each layer as that group has there, none of them its own."""

    KIND: ClassVar[Kind] = RANDOM_ROLES
    counterfactual: Counterfactual
    mode: Mode
    future: Future
    answers: AnswerRule
    group: Group
    heads: tuple[Head, ...]
    draws: int

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"pairs": self.counterfactual, "mode": self.mode, "group": self.group, **self.prompts.facets}


def candidate_conventions(conventions: RolesConventions) -> tuple[RolesConventions, ...]:
    """The conventions that the paper may have measured under: those given, and perhaps the text's own as a whole."""
    told = replace(conventions, places="paper", direction="text", pointer="structure")
    return (conventions,) if conventions.candidates == "as_run" or conventions == told else (conventions, told)


def roles_stories(prompts: Prompts, conventions: RolesConventions, chosen: DesignName) -> Design:
    """The stories of a procedure; `chosen` is the design that a run was given, in place of the published one."""
    name = chosen if conventions.design == "published" else conventions.design
    held_out = name == "counterbalanced" and conventions.ids == "held_out"
    return prompts.design(name, split="evaluation" if held_out else None)


def request_interchange(
    prompts: Prompts,
    circuit: Circuit,
    drawn: Design,
    counterfactual: Counterfactual,
    n: int,
    conventions: RolesConventions,
    cut: int = 0,
) -> Interchange:
    """Every group of a circuit gets the attention of a counterfactual, in prompts that many tokens short."""
    groups = tuple((group, circuit.group(group)) for group in MODES[conventions.places] if circuit.group(group))
    pairs = interchange_pairs(prompts, drawn, counterfactual, n, conventions, cut)
    return Interchange(pairs, counterfactual, conventions.places, conventions.future, conventions.answers, groups)


def request_random_interchange(
    prompts: Prompts,
    drawn: Design,
    circuit: Circuit,
    n: int,
    *,
    group: Group,
    conventions: RolesConventions,
    cut: int = 0,
) -> RandomInterchange:
    """Random groups like one of the circuit get the attention of a counterfactual, in the pairs that its own gets."""
    stories = roles_stories(prompts, conventions, drawn.name)
    pairs = interchange_pairs(prompts, stories, "pointer", n, conventions, cut)
    heads = circuit.group(group)
    return RandomInterchange(
        pairs, "pointer", conventions.places, conventions.future, conventions.answers, group, heads, RANDOM_GROUPS
    )


def interchange_pairs(
    prompts: Prompts, drawn: Design, counterfactual: Counterfactual, n: int, conventions: RolesConventions, cut: int = 0
) -> PromptSet:
    """The pairs of a procedure, that many tokens short."""
    first = prompts.evaluation if conventions.ids == "held_out" else prompts.first
    alone = counterfactual == "pointer" and conventions.pointer == "structure"
    pairing = ("structure_only_pointer" if alone else counterfactual, conventions.direction)
    return prompts.draw(drawn, range(first, first + n), pairing, cut=cut)
