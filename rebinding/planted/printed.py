"""The numbers that a paper about `pointer` would have printed, computed from its lines and not from its weights.

Three boxes, the first is asked about and was swapped with the second. Every attention distribution is a softmax of the
scores that the lines promise; jitter and the norms are left out. The names are those of the paper's printed numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rebinding.planted.language import GRADED_GAP, Softness
from rebinding.planted.mechanisms import ECHO_LOGIT, FOUND_WEIGHT, OBJECT_LOGIT, WANTED_WEIGHT
from rebinding.task.words import Vocabulary

BOXES, ASKED, ANSWER = 3, 0, 1
THING_PREFERENCE = 0.25
READ = {"k_box": slice(0, 1), "k_object": slice(1, 2)}
"""The tokens on which a condition's attention is read, if not both kinds."""
HEADS_OF_B = 2
"""`match` moves and `fetch` does not; what is averaged over group B is halved."""


def pointer_numbers(softness: Softness) -> Mapping[str, float]:
    """Accuracies, margins, head roles and the Q/K table of `pointer`."""
    want = _want(softness)
    plain = _logits(want, _match(want, want, softness), softness)
    swapped = _exchanged(want)
    numbers = {"accuracy.full": 1.0, "accuracy.circuit": 1.0, "accuracy.random": 1.0 / BOXES}
    for scope in ("full", "circuit"):
        numbers[f"margin.{scope}"] = _margin(plain)
        numbers[f"logit.{scope}"] = float(plain[ANSWER])
    numbers |= {"margin.random": 0.0, "logit.random": _by_means()}
    pointed = _logits(want, _match(swapped, swapped, softness), softness)
    numbers["roles.B.pointer"] = float((pointed - plain)[ASKED])
    copied = _copied(want, softness)
    numbers["roles.A.pointer"] = float((_exchanged(copied) - copied)[ASKED])
    numbers |= {"roles.B.content": 0.0, "roles.A.content": 0.0}
    conditions = {
        "q": (swapped, swapped), "k_both": (swapped, swapped), "k_box": (swapped, want),
        "k_object": (want, swapped), "qk": (want, want),
    }  # fmt: skip
    for name, (at_boxes, at_objects) in conditions.items():
        numbers |= _row(name, want, at_boxes, at_objects, softness)
    return numbers | _of_correct(numbers)


def _of_correct(numbers: Mapping[str, float]) -> dict[str, float]:
    """The table of correct examples only; all prompts are answered correctly, so it equals the other table."""
    return {
        f"correct_only.{condition}.{name}": numbers[f"binding.{condition}.{name}"]
        for condition in ("q", "k_both", "qk")
        for name in ("dR", "dlogit")
    }


def _by_means() -> float:
    """The logit of any object in a circuit that lacks a link: heads at their means promote every object of the stories
    equally, and none in particular."""
    return (OBJECT_LOGIT + ECHO_LOGIT) / len(Vocabulary().split("train").objects)


def _row(name: str, want: Tensor, at_boxes: Tensor, at_objects: Tensor, softness: Softness) -> dict[str, float]:
    """One condition: how well each slot's box and object tokens match after the shift, read on the shifted ones."""
    before, after = _match(want, want, softness), _match(at_boxes, at_objects, softness)
    tokens = READ.get(name, slice(None))
    ratio = _preference(after[tokens]) - _preference(before[tokens])
    plain, changed = _logits(want, before, softness), _logits(want, after, softness)
    toward = (changed[ASKED] - changed[ANSWER]) - (plain[ASKED] - plain[ANSWER])
    switched = float(after[tokens].sum(0).argmax() == ASKED)
    return {
        f"binding.{name}.dR": float(ratio) / HEADS_OF_B,
        f"binding.{name}.dlogit": float(toward),
        f"binding.{name}.switch": switched / HEADS_OF_B,
    }


def _preference(attention: Tensor) -> Tensor:
    """How much more attention goes to the asked slot than to the answer's, in nats."""
    total = attention.sum(0)  # (slot)
    return torch.log(total[ASKED] / total[ANSWER])


def _want(softness: Softness) -> Tensor:
    """What C leaves at the question box, by slot: the pair, less the box's own slot."""
    m, d = softness.m, softness.d
    own = _gain(softness) * _softmax([m if k == ASKED else m - d for k in range(BOXES)])
    pair = own + own[[1, 0, 2]]
    reading = _softmax([m + d, *(m if k == ASKED else m - 2 * d for k in range(BOXES))])  # the swap's label, then boxes
    return _gain(softness) * (reading[0] * pair + 2.0 * reading[1:]) - own


def _match(at_boxes: Tensor, at_objects: Tensor, softness: Softness) -> Tensor:
    """Attention of `match` on (box or object, slot), from how well each token matches."""
    m, d = softness.m, softness.d
    scores = torch.stack([at_boxes, at_objects + THING_PREFERENCE]) * d - d + m  # (box or object, slot)
    return _softmax(scores.flatten().tolist()).view(2, BOXES)


def _copied(want: Tensor, softness: Softness, found: Tensor | None = None) -> Tensor:
    """Logits from the object's own token, by slot."""
    found = _gain(softness) * _match(want, want, softness).sum(0) if found is None else found
    margin = min(softness.m, FOUND_WEIGHT + WANTED_WEIGHT - GRADED_GAP)
    scores = FOUND_WEIGHT * found + WANTED_WEIGHT * want - (FOUND_WEIGHT + WANTED_WEIGHT) + margin
    return OBJECT_LOGIT * (1.0 + math.exp(-margin)) * _softmax(scores.tolist())


def _logits(want: Tensor, attention: Tensor, softness: Softness) -> Tensor:
    """Logits of the three objects, from what is wanted and where `match` looks."""
    echo = ECHO_LOGIT * _gain(softness) * attention[1]
    return _copied(want, softness, _gain(softness) * attention.sum(0)) + echo


def _gain(softness: Softness) -> float:
    return 1.0 + math.exp(-softness.m)


def _softmax(scores: Sequence[float]) -> Tensor:
    """Attention on keys, next to the first token with a score of 0."""
    return torch.softmax(torch.tensor([*scores, 0.0], dtype=torch.float64), dim=0)[:-1]


def _exchanged(by_slot: Tensor) -> Tensor:
    return by_slot[[1, 0, 2]]


def _margin(logits: Tensor) -> float:
    return float(logits[ANSWER] - max(logits[k] for k in range(BOXES) if k != ANSWER))
