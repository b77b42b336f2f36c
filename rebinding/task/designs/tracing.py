"""The counterfactuals of the tracing experiments: the words of the original that each mode replaces.

A mode is data. Words are named by function: `asked` and `partner` are the two boxes of the swap, `remaining` is a box
that no operation touches, `donor` and `donor2` are words that the original does not contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from rebinding.task.boxes import Contains, Move, Operation, Story, Swap
from rebinding.task.designs.scene import Scene
from rebinding.task.prompts import Prompt
from rebinding.task.words import DesignError

Word: TypeAlias = Literal["asked", "partner", "remaining", "donor", "donor2"]
Exchange: TypeAlias = tuple[tuple[Word, Word], ...]
ModeName: TypeAlias = Literal[
    "context_only",
    "swap_only",
    "context_target_box",
    "swap_target_box",
    "swap_target_box_to_remaining_context_box",
    "context_target_object_and_swap_target_box_to_remaining_context_box",
    "context_target_box_and_swap_query_box",
    "context_and_swap",
    "context_and_swap_target_box",
    "target_box",
    "query_box",
    "context_target_object_and_swap_query_box",
    "swap_target_object_with_remaining_context_object",
    "swap_partner",
    "no_swap",
]


@dataclass(frozen=True)
class TracingMode:
    """Edits of the original, each "this word becomes that word", and their effect on the answer.

    `answer` holds for one swap. "undefined": the asked box is not in the counterfactual's context. Only modes that
    `changes_answer` can show that a patch restores the original's answer.
    """

    says: str
    context: Exchange = ()
    swap: Exchange = ()
    objects: Exchange = ()
    asks: Literal["asked", "partner"] = "asked"
    removes_operations: bool = False
    answer: Literal["changes", "same", "undefined"] = "changes"

    @property
    def changes_answer(self) -> bool:
        return self.answer != "same"

    @property
    def keeps_length(self) -> bool:
        """Whether the counterfactual has as many tokens as the original."""
        return not self.removes_operations

    def counterfactual(self, scene: Scene) -> Prompt:
        """The scene's prompt with the edits. A sentence about a box that is no longer there has no effect."""
        original = scene.prompt()
        if self.swap and original.operation is None:
            raise DesignError("this mode edits the swap sentence and the design has operations=0")
        labels, objects = _labels(scene, self.context), _objects(scene, self.objects)
        contents = tuple(
            Contains(labels.get(statement.box, statement.box), objects.get(statement.object, statement.object))
            for statement in original.story.contents
        )
        operations = list(original.story.operations)
        if self.swap:
            operations[original.focus] = _renamed(operations[original.focus], _labels(scene, self.swap))
        story = Story(
            contents,
            () if self.removes_operations else tuple(operations),
            "ignore" if self.context or self.swap else "refuse",
        )
        question = scene.label(1) if self.asks == "partner" else original.question
        return Prompt(story, question, 0 if self.removes_operations else original.focus)


ASKED: Exchange = (("asked", "donor"),)
PARTNER: Exchange = (("partner", "donor"),)
PARTNER_TO_REMAINING: Exchange = (("partner", "remaining"),)

TRACING_MODES: Mapping[ModeName, TracingMode] = MappingProxyType(
    {
        "context_only": TracingMode(
            "the asked box bears another label in the context", context=ASKED, answer="undefined"
        ),
        "swap_only": TracingMode("the swap names another box instead of the asked one", swap=ASKED),
        "context_target_box": TracingMode("the partner bears another label in the context", context=PARTNER),
        "swap_target_box": TracingMode("the swap names another box instead of the partner", swap=PARTNER),
        "swap_target_box_to_remaining_context_box": TracingMode(
            "the swap names the remaining box instead of the partner", swap=PARTNER_TO_REMAINING
        ),
        "context_target_object_and_swap_target_box_to_remaining_context_box": TracingMode(
            "the partner holds another object, and the swap names the remaining box instead of it",
            objects=PARTNER, swap=PARTNER_TO_REMAINING,
        ),
        "context_target_box_and_swap_query_box": TracingMode(
            "the partner bears another label in the context, and the swap names another box instead of the asked one",
            context=(("partner", "donor2"),), swap=ASKED,
        ),
        "context_and_swap": TracingMode(
            "the asked box bears another label in context and swap, but not in the question",
            context=ASKED, swap=ASKED, answer="undefined",
        ),
        "context_and_swap_target_box": TracingMode(
            "the partner bears another label in context and swap", context=PARTNER, swap=PARTNER, answer="same"
        ),
        "target_box": TracingMode("the partner holds another object", objects=PARTNER),
        "query_box": TracingMode("the asked box holds another object", objects=ASKED, answer="same"),
        "context_target_object_and_swap_query_box": TracingMode(
            "the partner holds another object, and the swap names another box instead of the asked one",
            objects=PARTNER, swap=ASKED,
        ),
        "swap_target_object_with_remaining_context_object": TracingMode(
            "partner and remaining box hold each other's object",
            objects=(("partner", "remaining"), ("remaining", "partner")),
        ),
        "swap_partner": TracingMode("the question is about the partner", asks="partner"),
        "no_swap": TracingMode("there is no swap sentence; lengths differ", removes_operations=True),
    }
)  # fmt: skip
"""All published modes by their published names (without the prefix that says what is edited), and `no_swap`."""


def tracing_mode(name: str) -> TracingMode:
    return TRACING_MODES[mode_name(name)]


def mode_name(name: str) -> ModeName:
    """A mode by name; an error for an unknown one."""
    for mode in TRACING_MODES:
        if name == mode:
            return mode
    raise DesignError(f"there is no tracing mode {name!r}; the modes are {', '.join(TRACING_MODES)}")


def _entity(scene: Scene, word: Word) -> int | None:
    """The entity of a word by function, or None for a donor."""
    match word:
        case "asked":
            return scene.query_entity
        case "partner":
            return 1
        case "remaining":
            return scene.remaining
        case "donor" | "donor2":
            return None


def _labels(scene: Scene, edits: Exchange) -> dict[str, str]:
    return _words(scene, edits, scene.label, scene.donor_label)


def _objects(scene: Scene, edits: Exchange) -> dict[str, str]:
    return _words(scene, edits, scene.object, scene.donor_object)


def _words(scene: Scene, edits: Exchange, own: Callable[[int], str], donor: Callable[[int], str]) -> dict[str, str]:
    def text(word: Word) -> str:
        entity = _entity(scene, word)
        return donor(int(word == "donor2")) if entity is None else own(entity)

    return {text(old): text(new) for old, new in edits}


def _renamed(operation: Operation, labels: dict[str, str]) -> Operation:
    match operation:
        case Swap(first, second):
            return Swap(labels.get(first, first), labels.get(second, second))
        case Move(source, target):
            return Move(labels.get(source, source), labels.get(target, target))
    raise DesignError(f"{operation} names one box only; tracing edits swaps and moves")
