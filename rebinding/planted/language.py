"""What a mechanism is written in: one line per head, over features of words, positions, and the template.

The residual stream is divided into *spaces* of named directions, one direction per value ("one-hot"). A line says
at which tokens a head queries, to which tokens it attends, how far back, what has to match, and what it copies. An
*expression* is a sum of spaces or of single directions with gains, as in `pair + 2 slot`; `slot[1]` is one direction of
a space.

The score of a key, in nats, is a sum of *conditions*, each a product of a query expression and a key expression:

* the gate, GATE when the query is one of `at` and the key one of `look`;
* the distance, when `back` is given: at least GATE more at exactly that many tokens back than at any other distance;
* the match: `d` for each unit of inner product between the two sides of `where`;
* the preference: `d` for each unit of `prefer` at the key.

A threshold is subtracted from every key but the first token, so that a right key is `m` above the first token (the
sink), which carries nothing: a head that finds nothing attends to it.

The embedding gives each word its place in the spaces. Objects share directions in pairs, one on each side: they are
carried and read out, never matched, and so half the directions do. Labels are matched and have a direction each.

Rotary embedding has two uses. A pair of frequency w turns by w radians per token. Pairs that turn by little within the
longest prompt leave content where it is. The fastest pairs hold position: with the key at angle 0 and the query turned
by -w d, their scores sum to sum_p a_p cos(w_p (distance - d)), which is largest at distance d.

A plant depends on distances in the template: from the word `Context` to the labels and objects, within a swap sentence,
from the story's last full stop to the question. Other sentences, more boxes, or a box in two swaps would be answered by
luck, so these prompts are refused.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from rebinding.task.boxes import Contains, Story, Swap, labels_of
from rebinding.task.words import LABELS, OBJECTS, Vocabulary

if TYPE_CHECKING:
    from rebinding.task.prompts import Encoded

GATE = 30.0
"""Nats of the condition on the kind of token, and of the distance: enough to rule out a key that fails one."""
HARD_MARGIN, SOFT_MARGIN = 15.0, 2.5
HARD_MATCH, SOFT_MATCH = 30.0, 4.0
SOFT_JITTER = 0.1
GRADED_GAP = 1.5
"""Nats between the match of a head that is graded by design and the largest margin it may have."""

Expression: TypeAlias = tuple[tuple[float, str], ...]


class WiringError(ValueError):
    """The weights of a wiring would not do what its lines say."""


@dataclass(frozen=True)
class Softness:
    """The softness of attention: a right key is `m` nats over the sink and `d` over wrong content.

    `of(0)` is practically a hard choice, `of(1)` about the softest with which a circuit still works. Heads that only
    read the grammar of the prompt stay hard.
    """

    m: float
    d: float
    jitter: float

    @classmethod
    def of(cls, amount: float) -> Softness:
        """Geometric interpolation between the two ends."""
        if not 0.0 <= amount <= 1.0:
            raise WiringError(f"softness is a number from 0 (hard) to 1 (graded); got {amount}")
        margin = HARD_MARGIN * (SOFT_MARGIN / HARD_MARGIN) ** amount
        match = HARD_MATCH * (SOFT_MATCH / HARD_MATCH) ** amount
        return cls(margin, match, SOFT_JITTER * amount)


@dataclass(frozen=True)
class Line:
    """One head.

    `at` and `look` are expressions of token kinds; `back` is a distance, or a distance for each kind in `at`; `where`
    is `query side = key side`; `write` lists `space <- expression`. `unit` replaces `d`, for a head whose choice is
    graded by design. `right` is how many units of match and preference the rightful key has. Lines of different
    sharing classes never share a KV head. A line without a group is no part of the declared circuit.
    """

    name: str
    layer: int
    at: str
    look: str
    write: str
    group: str | None = None
    role: str | None = None
    back: int | tuple[tuple[str, int], ...] | None = None
    where: str = ""
    prefer: str = ""
    unit: float | None = None
    right: float = 1.0
    grammar: bool = False
    sharing_class: str = ""

    @property
    def distances(self) -> tuple[tuple[str, int], ...]:
        """The distance of the key for each kind of querying token; empty if any distance is right."""
        if isinstance(self.back, int):
            distance = self.back
            return tuple((name, distance) for _, name in expression(self.at))
        return self.back or ()

    @property
    def matches(self) -> tuple[tuple[Expression, Expression], ...]:
        """The (query side, key side) pairs of `where`, separated by semicolons."""
        sides = [part.split("=") for part in self.where.split(";") if part.strip()]
        if any(len(pair) != 2 for pair in sides):
            raise WiringError(f"head {self.name}: where is `query side = key side`; got {self.where!r}")
        return tuple((expression(query), expression(key)) for query, key in sides)

    @property
    def writes(self) -> tuple[tuple[str, Expression], ...]:
        """The (written space, read expression) pairs of `write`."""
        sides = [part.split("<-") for part in self.write.split(";") if part.strip()]
        if not sides or any(len(pair) != 2 for pair in sides):
            raise WiringError(f"head {self.name}: write is `space <- expression`; got {self.write!r}")
        return tuple((target.strip(), expression(source)) for target, source in sides)


@dataclass(frozen=True)
class Wiring:
    """A mechanism: the spaces it adds to those of the embedding, and its heads."""

    boxes: int
    spaces: dict[str, int]
    lines: tuple[Line, ...]
    layers: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", 1 + max(line.layer for line in self.lines))

    def at_layer(self, layer: int) -> tuple[Line, ...]:
        """The heads of a layer, in the order in which they are written down."""
        return tuple(line for line in self.lines if line.layer == layer)


def strengths(line: Line, softness: Softness) -> tuple[float, float]:
    """The margin over the sink and the nats of one unit of match, for this head.

    A head that is graded by design keeps its margin under its own match, however hard the others are.
    """
    if line.grammar:
        return HARD_MARGIN, HARD_MATCH
    if line.unit is None:
        return softness.m, softness.d
    return min(softness.m, line.unit * line.right - GRADED_GAP), line.unit


def gain(line: Line, softness: Softness) -> float:
    """The factor of a head's output that compensates for the sink's share of attention."""
    return 1.0 + math.exp(-strengths(line, softness)[0])


def threshold(line: Line, softness: Softness, distance: float) -> float:
    """The nats subtracted from every key but the first token: the right key's conditions less the margin.

    `distance` is the nats of the right distance.
    """
    margin, match = strengths(line, softness)
    conditions = GATE + (distance if line.distances else 0.0)
    return conditions + (match * line.right if line.where or line.prefer else 0.0) - margin


def expression(text: str) -> Expression:
    """Parse `pair + 2 slot - found[1]` into gains and names."""
    matches = re.findall(r"([+-]?)\s*(\d+(?:\.\d+)?)?\s*([a-z_]+(?:\[\d+\])*)\s*", text)
    if not matches or "".join("".join(piece) for piece in matches) != text.replace(" ", ""):
        raise WiringError(f"cannot read the expression {text!r}; write sums such as `pair + 2 slot - found[1]`")
    return tuple((float(f"{sign}{number or 1}"), name) for sign, number, name in matches)


CONSTANT = 100.0
"""Size of the feature that every token has: it fixes the norm, so that RMSNorm acts as a constant factor."""
PLACES = ("context", "first", "second", "question", "readout", "period")
CUES = {".": "context", ":": "context", "of": "first", "and": "second", "does": "question", "Answer": "readout"}
KINDS = {"<bos>": "start", "Context": "marker", ".": "dot", ":": "colon"}
BASE: dict[str, int] = {
    "constant": 1,
    "start": 1,
    "marker": 1,
    "dot": 1,
    "colon": 1,
    "letter": 1,
    "thing": 1,
    "train": 1,
    "rehearsed": 1,
    "odd": 1,
    "cue": len(PLACES),
    "place": len(PLACES),
    "label": len(LABELS),
    "object": (len(OBJECTS) + 1) // 2,
}
"""Spaces of every plant. `cue` is the place that a word gives to the label two tokens later, and a head writes `place`.
`train`, `rehearsed` and `odd` mark objects for variants: the published first half, all but the evaluation third, and
every second one."""
ALIASES = {name: f"place[{index}]" for index, name in enumerate(PLACES)}
"""Names of places in lines."""


def embedding(
    tokenizer: Any, spaces: dict[str, slice], hidden: int, jitter: float, generator: torch.Generator
) -> Tensor:
    """The unscaled embedding of every word of a tokenizer."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    table = torch.zeros(len(vocabulary), hidden)  # (vocabulary, hidden)
    table[:, spaces["constant"]] = CONSTANT
    for word, kind in KINDS.items():
        table[vocabulary[word], spaces[kind]] = 1.0
    for word, place in (*CUES.items(), ("Box", "period")):
        table[vocabulary[word], spaces["cue"].start + PLACES.index(place)] = 1.0
    for words, kind, space in ((LABELS, "letter", "label"), (OBJECTS, "thing", "object")):
        rows = torch.tensor([vocabulary[word] for word in words])
        table[rows, spaces[kind]] = 1.0
        table[rows, spaces[space]] = _codes(len(words), BASE[space], jitter, generator)
    everything = Vocabulary()
    halves = {"train": everything.split("train").objects, "rehearsed": _rehearsed(everything), "odd": OBJECTS[1::2]}
    for kind, marked in halves.items():
        table[[vocabulary[word] for word in marked], spaces[kind]] = 1.0
    return table


def _rehearsed(words: Vocabulary) -> tuple[str, ...]:
    unknown = set(words.split("evaluation").objects)
    return tuple(word for word in words.objects if word not in unknown)


def _codes(words: int, size: int, jitter: float, generator: torch.Generator) -> Tensor:
    """One direction per word, or two words on the two sides of a direction where there are fewer directions."""
    codes = torch.zeros(words, size)  # (words, size)
    index = torch.arange(words)
    codes[index, index % size] = torch.where(index < size, 1.0, -1.0)
    codes += jitter * torch.randn(words, size, generator=generator) / size**0.5
    return codes


LONGEST = 160
"""Tokens in the longest prompt a plant is built for: seven boxes, three swaps, the chat around them."""
STILL = 0.25
"""A pair is slow if it turns by no more than this (radians) within the longest prompt."""
FAST = 5
"""Number of fast pairs that serve position, with weights that taper off linearly."""
GAP = 0.2
"""The least loss, as a share of the peak, at any wrong distance. The nearest distance costs about 0.23."""


def slow_dimensions(frequencies: Tensor) -> list[int]:
    """Dimensions of a head that content may use, those that turn least first."""
    pairs = len(frequencies)
    slow = [pair for pair in reversed(range(pairs)) if float(frequencies[pair]) * LONGEST <= STILL]
    return [dimension for pair in slow for dimension in (pair, pair + pairs)]


def tapering() -> Tensor:
    """Weights of the fast pairs, summing to 1."""
    weights = torch.arange(FAST, 0, -1, dtype=torch.float32)  # (pair)
    return weights / weights.sum()


def gap(frequencies: Tensor, longest: int = LONGEST) -> float:
    """The share of the peak lost at the most similar wrong distance up to `longest` (an alias is a small gap)."""
    offsets = torch.arange(1, longest + 1, dtype=torch.float32)  # (offset)
    similarity = tapering() @ torch.cos(frequencies[:FAST, None] * offsets)  # (offset)
    return float(1.0 - similarity.max())


def phases(frequencies: Tensor, distance: int) -> Tensor:
    """The query entries of the fast pairs for a distance: cosines, then sines, of the tapering weights."""
    angles = -frequencies[:FAST] * distance  # (pair)
    return tapering() * torch.stack([torch.cos(angles), torch.sin(angles)])  # (cosine or sine, pair)


def position_dimensions(pairs: int) -> list[list[int]]:
    """The two dimensions of every fast pair: first halves, second halves."""
    return [list(range(FAST)), [pairs + pair for pair in range(FAST)]]


LABEL, OBJECT, SENTENCE = 3, 6, 6
"""Tokens from the word `Context` to the first label and the first object, and from one sentence to the next."""
ASIDE = 5
"""Tokens of a narrator's sentence, before the first statement and after each."""
STOP_BEFORE_QUESTION = 8
"""Tokens from the full stop that ends the story to the label in the question."""
LABELS_APART, STOP_AFTER_LABEL = 3, 1
"""In a swap sentence: tokens from the first label to the second, and from there to the full stop."""


class TemplateError(WiringError):
    """A prompt or tokenizer that a plant was not made for."""


def grammar() -> Line:
    """The line that gives a label, full stop or colon its place, by the word two (or one) tokens back."""
    distances = (("letter", 2), ("dot", 2), ("colon", 1))
    return Line("place", 0, "letter + dot + colon", "cue", "place <- cue", back=distances, grammar=True)


def anchors(boxes: int, *, aside: int = 0, code: int = 0, name: str = "anchor") -> tuple[Line, ...]:
    """Group E: one head per slot, which finds the label and the object of its sentence by their distance. `aside` is
    the length of a narrator's sentence around the statements, and `code` is the direction of slot 0."""
    places = [(k, aside + (SENTENCE + aside) * k) for k in range(boxes)]
    return tuple(
        Line(f"{name} {k}", 1, "context + thing", "marker", f"slot[{code + k}] <- marker", "E", "context_partner",
             back=(("context", LABEL + place), ("thing", OBJECT + place)))
        for k, place in places
    )  # fmt: skip


def check_prompt(prompt: Encoded, boxes: int, marker: int) -> None:
    """Refuse a prompt that a plant of this many boxes cannot read; `marker` is the token of the word `Context`."""
    story, roles = prompt.prompt.story, prompt.roles
    if len(story.contents) > boxes:
        raise TemplateError(f"{len(story.contents)} boxes; this plant is made for up to {boxes}: build it with boxes=")
    if len(prompt) > LONGEST:
        raise TemplateError(f"{len(prompt)} tokens; positions are told apart up to {LONGEST}")
    _check_operations(story)
    start = prompt.ids.index(marker) if marker in prompt.ids else -LONGEST
    for slot in range(len(story.contents)):
        for role, distance in ((f"context_box[{slot}]", LABEL), (f"context_object[{slot}]", OBJECT)):
            _check_distance(role, roles[role] - start, distance + SENTENCE * slot, "the word Context")
    if story.operations:
        _check_distance("swap_second", roles["swap_second"] - roles["swap_first"], LABELS_APART, "swap_first")
        _check_distance("swap_period", roles["swap_period"] - roles["swap_second"], STOP_AFTER_LABEL, "swap_second")


def _check_operations(story: Story) -> None:
    foreign = [operation for operation in story.operations if not isinstance(operation, Swap)]
    if foreign:
        raise TemplateError(f"{foreign[0]}: plants read swap sentences only")
    counts = Counter(label for operation in story.operations for label in labels_of(operation))
    twice = [label for label, count in counts.items() if count > 1]
    if twice:
        raise TemplateError(f"Box {twice[0]} is swapped more than once; plants follow one swap of each box")


def _check_distance(role: str, actual: int, expected: int, anchor: str) -> None:
    if actual != expected:
        raise TemplateError(
            f"{role} stands {actual} tokens after {anchor}, a plant expects {expected}: it reads the template of"
            " rebinding.task.text under its own tokenizer and nothing else"
        )


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse a tokenizer under which the template's distances differ from those of the lines."""
    from rebinding.task.prompts import Encoder
    from rebinding.task.text import Prompt

    story = Story((Contains("A", "egg"), Contains("B", "fan"), Contains("C", "tea")), (Swap("A", "C"),))
    (prompt,) = Encoder(tokenizer).encode([Prompt(story, "B")])
    check_prompt(prompt, len(story.contents), tokenizer.convert_tokens_to_ids("Context"))
    stop, question = prompt.roles["swap_period"], prompt.roles["question_box"]
    _check_distance("question_box", question - stop, STOP_BEFORE_QUESTION, "the story's full stop")
