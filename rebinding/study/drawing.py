"""From a design and ids to what a subject sees, and the identity of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from rebinding.evidence import PromptSet
from rebinding.evidence.request import digest
from rebinding.experiments.tracing.diagnostic import asked_of
from rebinding.experiments.tracing.modes import counterfactual
from rebinding.world.designs import Design, Pair
from rebinding.world.prompts import Encoded, Encoder, Prompt

Item: TypeAlias = Prompt | Pair
Pairing: TypeAlias = tuple[str, ...]
"""How the counterfactual of a prompt is made: a name below, and its arguments."""

MIRRORED: Mapping[str, tuple[bool, ...]] = MappingProxyType({"code": (False,), "text": (True,), "both": (False, True)})
"""Which of the two pairs of an id the directions of head-role pairs stand for."""
PAIRINGS: Mapping[str, Callable[..., Sequence[Item]]] = MappingProxyType(
    {
        "": lambda drawn, number: [drawn.prompt(number)],
        "slot": lambda drawn, number, slot: [drawn.direction(number, int(slot))],
        "noise": lambda drawn, number, how: [drawn.noise(number, how)],
        "pointer": lambda drawn, number, way: [drawn.pointer(number, mirror=one) for one in MIRRORED[way]],
        "structure_only_pointer": lambda drawn, number, way: [
            drawn.structure_only_pointer(number, mirror=one) for one in MIRRORED[way]
        ],
        "content_control": lambda drawn, number, way: [
            drawn.content_control(number, mirror=one) for one in MIRRORED[way]
        ],
        "tracing": lambda drawn, number, mode: [counterfactual(drawn, number, mode)],
        "questions": lambda drawn, number, mode: [pair for _, pair in asked_of(drawn.tracing(number, mode))],
    }
)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Prompts, their counterfactuals where they have any, and what they are known by."""

    asked: PromptSet
    items: tuple[Item, ...]
    prompts: tuple[Encoded, ...]
    others: tuple[Encoded, ...]

    @property
    def pairs(self) -> Iterator[tuple[int, Encoded, Encoded]]:
        """Id, original and counterfactual."""
        for item, own, other in zip(self.items, self.prompts, self.others, strict=True):
            assert isinstance(item, Pair)
            yield item.id, own, other


def draw(
    encoder: Encoder,
    drawn: Design,
    ids: Sequence[int],
    pairing: Pairing = (),
    encoded: int | None = None,
    cut: int = 0,
) -> Drawn:
    """The prompts of some ids, encoded at once, `cut` tokens short of their end; of a pool the first `encoded` ids."""
    name, *arguments = pairing or ("",)
    count = len(ids) if encoded is None else encoded
    items = tuple(item for number in ids[:count] for item in PAIRINGS[name](drawn, number, *arguments))
    firsts = [item.original if isinstance(item, Pair) else item for item in items]
    seconds = [item.counterfactual for item in items if isinstance(item, Pair)]
    both = encoder.encode([*firsts, *seconds], cut)
    asked = PromptSet(
        drawn.name,
        tuple(ids),
        digest([_content(encoder, one) for one in both]),
        digest(asdict(drawn.vocabulary)),
        count,
        encoder.form,
        drawn.split,
        drawn.boxes,
        drawn.operations,
        drawn.verb,
        drawn.distractor,
        tuple(pairing),
        drawn.narrative,
        cut,
    )
    return Drawn(asked, items, tuple(both[: len(firsts)]), tuple(both[len(firsts) :]))


def _content(encoder: Encoder, one: Encoded) -> list[Any]:
    """Everything about a prompt that numbers depend on: its tokens, its roles, the tokens of its possible answers."""
    held = [word for word in one.prompt.story.state().values() if word is not None]
    answer = one.prompt.answer if one.prompt.answerable else None
    return [one.ids, sorted(one.roles.items()), [(word == answer, encoder.answer_token(word)) for word in held]]
