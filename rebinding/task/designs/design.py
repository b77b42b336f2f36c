"""Designs: deterministic maps from a prompt id to a prompt, and to the pair that each experiment needs.

* `published` puts the queried box in slot 0 and its partner in slot 1, and names the partner first;
* `partner_second` is the same with the partner named second, so that its mention can know the box it is swapped with;
* `counterbalanced` crosses the slots, the naming and the kind of asked box (see `rebinding.task.designs.scene`).

Every edit is defined on a scene, so all methods work in all designs.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from rebinding.task.boxes import MAX_BOXES, MIN_BOXES
from rebinding.task.designs.scene import (
    DISTRACTED_BOXES,
    TRACING_MODES,
    Distractor,
    Scene,
    Verb,
    block_length,
    check_crossing,
    counterbalanced,
    tracing_mode,
)
from rebinding.task.prompts import Prompt
from rebinding.task.text import WORDINGS, WordingName
from rebinding.task.words import HALVES, THIRDS, DesignError, Split, Vocabulary, draw

DesignName: TypeAlias = Literal["published", "partner_second", "counterbalanced"]
NoiseKind: TypeAlias = Literal["rotation", "fresh", "objects", "independent"]
DESIGNS: tuple[DesignName, ...] = get_args(DesignName)
NOISE_KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)


@dataclass(frozen=True)
class Pair:
    """An original prompt and its counterfactual; `mode` is the kind of the counterfactual."""

    id: int
    original: Prompt
    counterfactual: Prompt
    mode: str

    @property
    def changes_answer(self) -> bool:
        """Whether the counterfactual's answer differs from the original's (also if it has none)."""
        return not self.counterfactual.answerable or self.counterfactual.answer != self.original.answer

    def with_query(self, box: str) -> Pair:
        """The same two stories with a question about `box` in both."""
        return replace(
            self,
            original=replace(self.original, question=box),
            counterfactual=replace(self.counterfactual, question=box),
        )


@dataclass(frozen=True)
class Design:
    """Stories by id, and the counterfactual that each is paired with. Make one with `design(...)`."""

    name: DesignName
    split: Split
    boxes: int = 3
    operations: int = 1
    verb: Verb = "swap"
    distractor: Distractor | None = None
    narrative: bool = False
    wording: WordingName = "published"
    vocabulary: Vocabulary = field(default=Vocabulary(), repr=False)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def block(self) -> int:
        """The number of consecutive ids over which the design is balanced (1 where every id has the same slots)."""
        return block_length(self.boxes, self.operations) if self.name == "counterbalanced" else 1

    def prompt(self, prompt_id: int) -> Prompt:
        """The prompt of an id, on which circuits are found, evaluated and steered."""
        return self._scene(prompt_id).prompt()

    def tracing(self, prompt_id: int, mode: str) -> Pair:
        """The pair of a tracing mode. If the id asks about a bystander, the pair asks about a swapped box of the same
        story, because every mode is about the two boxes of the swap."""
        scene = self._scene(prompt_id).with_query(0)
        return Pair(prompt_id, scene.prompt(), tracing_mode(mode).counterfactual(scene), mode)

    def noise(self, prompt_id: int, kind: NoiseKind) -> Pair:
        """The corrupt prompt of path patching.

        `rotation`: the context statements move one slot on; the answer stays the same word. `fresh`: the two swapped
        boxes bear other labels and hold other objects; all slots stay. `objects`: every box holds the object of another
        one, and nothing else changes. `independent`: another story, with other objects, labels, and slots of asked box,
        partner and answer; only the naming order stays, so that roles align.
        """
        scene = self._scene(prompt_id)
        match kind:
            case "rotation":
                noise = replace(scene, order=scene.order[1:] + scene.order[:1])
            case "fresh":
                noise = scene.with_donor_labels({0: 0, 1: 1}).with_donor_objects({0: 0, 1: 1})
            case "objects":
                noise = scene.rotate_objects(1 + prompt_id % (scene.boxes - 1))
            case "independent":
                noise = _independent(scene)
            case _:
                raise DesignError(f"there is no noise {kind!r}; the kinds are {', '.join(NOISE_KINDS)}")
        return Pair(prompt_id, scene.prompt(), noise.prompt(), kind)

    def content_control(self, prompt_id: int, *, mirror: bool = False) -> Pair:
        """Other objects in the two swapped boxes; boxes, slots and wording stay, so the same slot has to be read."""
        scene = self._role_scene(prompt_id, mirror)
        return Pair(prompt_id, scene.prompt(), _refilled_by_slot(scene).prompt(), "content_control")

    def other_objects(self, prompt_id: int) -> Pair:
        """Other objects in all boxes, none of which the prompt has; boxes, slots and wording stay. As in tracing, the
        question is about a swapped box."""
        scene = self._scene(prompt_id).with_query(0)
        refilled = scene.with_donor_objects({entity: entity for entity in range(self.boxes)})
        return Pair(prompt_id, scene.prompt(), refilled.prompt(), "other_objects")

    def pointer(self, prompt_id: int, *, mirror: bool = False) -> Pair:
        """The statements of the swapped boxes change places, so another slot has to be read; objects are new.

        As published the answer's slot goes from 0 to 1 and the swap sentence follows the order of the statements, so
        its wording changes too. With `mirror`, as in the paper's figure, the answer's slot goes from 1 to 0 and the
        wording stays; it stays in the other designs as well.
        """
        scene = self._role_scene(prompt_id, mirror)
        counterfactual = _refilled_by_slot(scene.exchange_statements(0, 1))
        if self.name == "published" and not mirror:
            counterfactual = replace(counterfactual, partner_first=not counterfactual.partner_first)
        return Pair(prompt_id, scene.prompt(), counterfactual.prompt(), "pointer")

    def structure_only_pointer(self, prompt_id: int, *, mirror: bool = False) -> Pair:
        """The statements of the swapped boxes change places and nothing else does: the same words, the same swap
        sentence and the same answer, which stands in another slot."""
        scene = self._role_scene(prompt_id, mirror)
        return Pair(prompt_id, scene.prompt(), scene.exchange_statements(0, 1).prompt(), "structure_only_pointer")

    def direction(self, prompt_id: int, slot: int) -> Prompt:
        """The id's story with a question about the box whose answer is in `slot`."""
        prompt = self.prompt(prompt_id)
        for box, content in prompt.story.state().items():
            if 0 <= slot < self.boxes and content == prompt.story.objects[slot]:
                return replace(prompt, question=box)
        raise DesignError(f"no box of prompt {prompt_id} holds the object of slot {slot} at the end")

    def _scene(self, prompt_id: int) -> Scene:
        words = draw(self.vocabulary.split(self.split), prompt_id)
        entities = tuple(range(self.boxes))
        if self.name == "counterbalanced":
            order, query_entity, partner_first = counterbalanced(prompt_id, self.boxes, self.operations)
        else:
            order, query_entity, partner_first = entities, 0, self.name == "published"
        settings = (self.operations, self.verb, self.distractor, self.narrative, self.wording)
        return Scene(words, order, entities, entities, partner_first, query_entity, *settings)

    def _role_scene(self, prompt_id: int, mirror: bool) -> Scene:
        """The originals of the head-role pairs. The published ones have the partner's statement first (answer in slot
        0), unlike the prompts that the circuit was found on; mirrored, and in the counterbalanced design, they are the
        design's own prompts (the two orders of the statements occur there anyway)."""
        scene = self._scene(prompt_id).with_query(0)
        if self.operations != 1:
            raise DesignError(f"head-role pairs need operations=1; this design has operations={self.operations}")
        exchange = mirror if self.name == "counterbalanced" else not mirror
        return scene.exchange_statements(0, 1) if exchange else scene


def design(
    name: DesignName = "published",
    *,
    split: Split | None = None,
    boxes: int = 3,
    operations: int = 1,
    verb: Verb = "swap",
    distractor: Distractor | None = None,
    narrative: bool = False,
    wording: WordingName = "published",
    vocabulary: Vocabulary | None = None,
    tokenizer: object | None = None,
) -> Design:
    """A design by name.

    `split` is `train` (default), `test` or `none`; for `counterbalanced` it is `discovery` (default), `directions` or
    `evaluation`, three disjoint sets of words. `operations` is the length of the chain of swaps that leads from the
    asked box to its answer; `verb="move"` empties the asked box and moves the partner's object into it,
    `verb="refill"` empties it and puts a new object in. `distractor` adds a swap of two more boxes before or after.
    `narrative` puts neutral sentences around the statements; `wording` is a paraphrase of `WORDINGS`. With a
    `tokenizer`, objects that are not single tokens are dropped before the words are split, as in the published
    procedure.
    """
    words = Vocabulary() if vocabulary is None else vocabulary
    if tokenizer is not None:
        from rebinding.task.prompts import is_single_token

        words = words.keep(lambda word: is_single_token(tokenizer, word))
    if split is None:
        split = "discovery" if name == "counterbalanced" else "train"
    return Design(name, split, boxes, operations, verb, distractor, narrative, wording, words)


def _check(design: Design) -> None:
    if design.name not in DESIGNS:
        raise DesignError(f"there is no design {design.name!r}; the designs are {', '.join(DESIGNS)}")
    if design.wording not in WORDINGS:
        raise DesignError(f"there is no wording {design.wording!r}; there are {', '.join(WORDINGS)}")
    splits = THIRDS if design.name == "counterbalanced" else (*HALVES, "none")
    if design.split not in splits:
        raise DesignError(f"{design.name} has no split {design.split!r}; it has {', '.join(splits)}")
    if not MIN_BOXES <= design.boxes <= MAX_BOXES:
        raise DesignError(f"{design.boxes} boxes given; a story has {MIN_BOXES} to {MAX_BOXES}")
    if not 0 <= design.operations < design.boxes:
        raise DesignError(
            f"a chain of {design.operations} operations needs {design.operations + 1} boxes; got {design.boxes}"
        )
    if design.verb == "refill" and design.operations != 1:
        raise DesignError(
            f"a box is refilled once, from outside, so there is no chain; got operations={design.operations}, give 1"
        )
    if design.distractor and design.boxes < design.operations + 2 + DISTRACTED_BOXES:
        raise DesignError(
            f"a distractor swaps two boxes that nothing else touches; {design.operations} operations need at least"
            f" {design.operations + 2 + DISTRACTED_BOXES} boxes then, got {design.boxes}"
        )
    if design.name == "counterbalanced":
        check_crossing(design.boxes, design.operations)
    example = draw(design.vocabulary.split(design.split), 0)
    example.label(design.boxes - 1)
    example.object(design.boxes - 1)


def _refilled_by_slot(scene: Scene) -> Scene:
    """New objects for the two swapped boxes; the box of the earlier slot gets the first donor."""
    first, second = sorted((0, 1), key=scene.order.index)
    return scene.with_donor_objects({first: 0, second: 1})


def _independent(scene: Scene) -> Scene:
    """Shuffle the slots until every entity that the answer depends on has another slot, and take the next words.

    All objects are new. Labels are the next ones of the draw, from its start again if they run out.
    """
    moving = {scene.query_entity, *range(scene.operations + 1)}
    generator = random.Random(f"slots {scene.words.id}")
    order = list(scene.order)
    while any(old == new for old, new in zip(scene.order, order, strict=True) if old in moving):
        generator.shuffle(order)
    count = len(scene.words.labels)
    return replace(
        scene,
        order=tuple(order),
        labels=tuple((scene.boxes + entity) % count for entity in range(scene.boxes)),
        objects=tuple(scene.boxes + entity for entity in range(scene.boxes)),
    )


ROLE_PAIRS = ("content_control", "pointer", "structure_only_pointer")
PAIRS = (*TRACING_MODES, *NOISE_KINDS, *ROLE_PAIRS)
"""Every kind of counterfactual: of activation patching, of path patching, and of head-role patching."""


def pair_of(stories: Design, prompt_id: int, kind: str) -> Pair:
    """The pair of a kind."""
    if kind in TRACING_MODES:
        return stories.tracing(prompt_id, kind)
    for noise in NOISE_KINDS:
        if kind == noise:
            return stories.noise(prompt_id, noise)
    match kind:
        case "content_control":
            return stories.content_control(prompt_id)
        case "pointer":
            return stories.pointer(prompt_id)
        case "structure_only_pointer":
            return stories.structure_only_pointer(prompt_id)
    raise DesignError(f"there is no pair {kind!r}; the kinds are {', '.join(PAIRS)}")
