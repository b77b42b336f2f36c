"""Requests of section 3: residual interchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from types import MappingProxyType
from typing import ClassVar, Literal, TypeAlias

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.evidence.request import Facet
from rebinding.experiments.prompts import PAIRINGS, Stories
from rebinding.experiments.tokens import BLOCK
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import TracingConventions
from rebinding.task.boxes import labels_of
from rebinding.task.designs import Design, DesignError, DesignName, ModeName, Pair, Split, tracing_mode
from rebinding.task.prompts import AnswerRule

SCORES = ("hit", "hit_with_counterfactual", "margin", "counterfactual_margin", "answer_logit")
CELL = ("prompt", "mode", "layer", "token", "place", "role", "differs", "ran", "relative_change")
ANSWERED = Kind("answered", ("prompt", "right"))
TRACING = Kind(
    "tracing",
    (*CELL, *SCORES, *(f"base_{name}" for name in SCORES)),
    numbered="(base_)?metric",
    nullable=("counterfactual_margin", "base_counterfactual_margin"),
    edit_columns=("prompt",),
)
EVERY_TOKEN = "every token"
"""The facet `roles` of a map over all tokens."""
MENTION = Kind(
    "first-mention",
    ("prompt", "mode", "layer", "patched", "relative_change", *SCORES, *(f"base_{name}" for name in SCORES)),
    nullable=("counterfactual_margin", "base_counterfactual_margin"),
    edit_columns=("prompt", "patched"),
)
DIAGNOSTIC = Kind(
    "readout-diagnostic",
    (
        *("prompt", "question", "place", "first", "last", "margin", "base_margin", "change", "hit"),
        *("original_correct", "counterfactual_correct", "relative_change"),
    ),
    edit_columns=("prompt", "question", "place"),
)
STORED_STATE = Kind(
    "stored-state",
    ("prompt", "donor", "span", "own", "second", "original_correct", "second_correct", "relative_change"),
    edit_columns=(),  # tokens that hold nothing of the objects are a finding; the other swap shows that the patch acts
)
DONORS = ("objects", "swap")
"""The second prompts of `stored-state`: other objects in all boxes and the same swap; the same objects and another
swap."""
SpanName: TypeAlias = Literal["state", "question"]
"""From the swap to the token before the asked label; from that label to the token before the readout."""
Query: TypeAlias = Literal["same", "partner"]
"""Which box the counterfactual asks about: the original's, or the original's partner in the swap."""
SITES = ("swap_period", "readout")
"""The roles that `readout-diagnostic` patches."""
PATCHED: Mapping[str, tuple[bool, bool]] = MappingProxyType({"swap": (False, True), "both": (True, True)})
"""Whether the context label, and the swap label, is patched with the original's, in `first-mention`."""
OVERSAMPLING = 4
"""The published filter looks for N correct originals among this many times N ids."""
DIAGNOSTIC_MODE: ModeName = "swap_target_box_to_remaining_context_box"
WIDE = 5
PROMPTS_OF_FIGURE = 60
"""The most prompts of the readout diagnostic in all windows, which a figure shows and no rule uses."""
HELD_OUT: dict[DesignName, Split] = {"published": "test", "partner_second": "test", "counterbalanced": "evaluation"}
"""The split of each design whose words discovery does not use."""

WINDOWS = 6
"""By default a window is a sixth of the layers."""


@dataclass(frozen=True, order=True)
class Window:
    """Layers `first` to `last`, both patched."""

    first: int
    last: int


def before_the_answer(n_layers: int) -> Window:
    """All layers but the last sixth: there the readout already encodes the answer, and a patch of it would be the
    answer itself."""
    return Window(0, n_layers - 1 - max(1, n_layers // WINDOWS))


def windows_of_rules(n_layers: int) -> list[Window]:
    """All layers together, and those before the answer."""
    everything = Window(0, n_layers - 1)
    return [before_the_answer(n_layers), everything] if n_layers > 1 else [everything]


def windows(n_layers: int, width: int | None = None) -> list[Window]:
    """Every single layer, every run of `width` layers, and the windows of rules."""
    width = max(1, -(-n_layers // WINDOWS)) if width is None else width
    if not 1 <= width <= n_layers:
        raise ValueError(f"a window of {width} layers in a model of {n_layers}; give 1 to {n_layers}")
    runs = {Window(first, first + size - 1) for size in (1, width) for first in range(n_layers - size + 1)}
    return sorted(runs | set(windows_of_rules(n_layers)))


@dataclass(frozen=True)
class InBlocks(OnPrompts):
    """Evidence that is computed and stored in blocks of prompts. `rule` gives the tokens of an answer."""

    rule: AnswerRule

    @property
    def block(self) -> int:
        return BLOCK


@dataclass(frozen=True)
class Answered(InBlocks):
    """Whether the unedited model answers the original of each pair correctly, among its objects."""

    KIND: ClassVar[Kind] = ANSWERED


@dataclass(frozen=True)
class OfMode(InBlocks):
    """Residual interchange in the pairs of one mode."""

    mode: ModeName

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"mode": self.mode, **self.prompts.facets}


@dataclass(frozen=True)
class TracingMap(OfMode):
    """Patch one token and layer at a time, at every pair's own tokens with one of these roles; None: at every token."""

    KIND: ClassVar[Kind] = TRACING
    roles: tuple[str, ...] | None

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {**super().facets, "roles": EVERY_TOKEN if self.roles is None else len(self.roles)}


@dataclass(frozen=True)
class FirstMention(OfMode):
    """Patch a label in the swap, alone and together with one in the context."""

    KIND: ClassVar[Kind] = MENTION
    context: str
    swap: str


@dataclass(frozen=True)
class ReadoutDiagnostic(InBlocks):
    """Patch windows of layers at the swap's full stop and at the readout, for every question: the two that rules use,
    or also each layer by itself and runs of layers."""

    KIND: ClassVar[Kind] = DIAGNOSTIC
    all_windows: bool = False

    @property
    def facets(self) -> Mapping[str, Facet]:
        return {"windows": "all" if self.all_windows else "of rules", **self.prompts.facets}


@dataclass(frozen=True)
class StoredState(InBlocks):
    """Take the tokens from the swap to the asked label, or from there to the readout, from a second prompt."""

    KIND: ClassVar[Kind] = STORED_STATE


def story(prompts: Stories, name: DesignName, boxes: int, split: Split | None = None) -> Design:
    """The design with three boxes and a swap, or with five and a distractor swap."""
    distractor = {"distractor": "before"} if boxes == WIDE else {}
    return prompts.design(name, boxes=boxes, split=split, **distractor)


def tracing_stories(prompts: Stories, conventions: TracingConventions, design: DesignName, boxes: int) -> Design:
    """The stories of a procedure; `design`, if not "published", replaces its own."""
    if design in ("published", conventions.design):
        return story(prompts, conventions.design, boxes, conventions.split)
    return story(prompts, design, boxes, HELD_OUT[design])


def request_map(
    prompts: Stories,
    design: Design,
    ids: Sequence[int],
    mode: ModeName,
    roles: Sequence[str] | None,
    conventions: TracingConventions,
) -> TracingMap:
    """Request the map of one mode on some ids, at the tokens with one of these roles, or at all tokens; `context_box`
    is the label of every slot."""
    pairs = prompts.draw(design, ids, ("tracing", mode))
    return TracingMap(pairs, conventions.rule, mode, None if roles is None else tuple(roles))


def request_mention(
    prompts: Stories,
    design: Design,
    ids: Sequence[int],
    mode: ModeName,
    context: str,
    swap: str,
    conventions: TracingConventions,
) -> FirstMention:
    """Request what the context label adds to the swap label, on some ids."""
    return FirstMention(prompts.draw(design, ids, ("tracing", mode)), conventions.rule, mode, context, swap)


def request_diagnostic(
    prompts: Stories, design: Design, n: int, conventions: TracingConventions, all_windows: bool = False
) -> ReadoutDiagnostic:
    """Request the readout diagnostic, on `n` prompts whose swap names the asked box last; in all windows on fewer.

    The swap's full stop is before the question and cannot depend on it. If a patch there helps the question about one
    box, the box is identified by its place in the swap. So where the design crosses the order of naming, use the ids
    whose asked box is named last, as in every published prompt.
    """
    n = min(n, PROMPTS_OF_FIGURE) if all_windows else n
    ids = islice((number for number in count(first_id(prompts, conventions)) if _asked_last(design, number)), n)
    return ReadoutDiagnostic(
        prompts.draw(design, tuple(ids), ("questions", DIAGNOSTIC_MODE)), conventions.rule, all_windows
    )


def request_stored_state(
    prompts: Stories, design: Design, circuit: Circuit, n: int, *, conventions: TracingConventions
) -> StoredState:
    """Request both spans on counterbalanced stories, whatever the design of the run."""
    stories = prompts.design("counterbalanced", boxes=design.boxes, split="evaluation")
    ids = range(prompts.evaluation, prompts.evaluation + n)
    return StoredState(prompts.draw(stories, ids, ("stored",)), conventions.rule)


def answered_ids(
    prompts: Stories,
    design: Design,
    mode: ModeName,
    n: int,
    conventions: TracingConventions,
    ask: Callable[[Answered], Evidence],
) -> list[int]:
    """The first `n` ids of a mode whose original is answered correctly. Tests no more ids than needed, and at most
    `OVERSAMPLING` times as many, as published."""
    ids: list[int] = []
    first = first_id(prompts, conventions)
    for begin in range(first, first + OVERSAMPLING * n, n):
        pairs = prompts.draw(design, range(begin, begin + n), ("tracing", mode))
        rows = ask(Answered(pairs, conventions.rule)).rows
        ids += rows.loc[rows["right"], "prompt"].tolist()
        if len(ids) >= n:
            break
    return ids[:n]


def first_id(prompts: Stories, conventions: TracingConventions) -> int:
    """The first id of a procedure."""
    return prompts.skip_prompts if conventions.ids == "from_zero" else prompts.evaluation


def _asked_last(design: Design, number: int) -> bool:
    """Whether the diagnostic may use an id; every id if the order of naming is fixed."""
    if design.name != "counterbalanced":
        return True
    original = design.tracing(number, DIAGNOSTIC_MODE).original
    assert original.operation is not None
    return labels_of(original.operation)[-1] == original.question


def counterfactual(design: Design, prompt_id: int, mode: str, query: Query = "same") -> Pair:
    """A design's tracing pair; with `query="partner"` its counterfactual asks about the original's partner."""
    if not tracing_mode(mode).keeps_length:
        raise DesignError(
            f"the counterfactual of {mode!r} is shorter than the original, so tokens do not correspond; it can be"
            " answered but not traced"
        )
    pair = design.tracing(prompt_id, mode)
    if query == "same":
        return pair
    partner = pair.original.partner
    if partner is None:
        raise DesignError(f"prompt {prompt_id} asks about a box without a partner; query='partner' needs one")
    return replace(pair, counterfactual=replace(pair.counterfactual, question=partner))


def pairs_by_question(pair: Pair) -> list[tuple[str, Pair]]:
    """A pair with a question about every box whose answer it changes, named by the box's part in the swap."""
    names = {pair.original.question: "asked", str(pair.original.partner): "partner"}
    changed = [box for box in pair.original.story.boxes if pair.with_query(box).changes_answer]
    return sorted(((names.get(box, "remaining"), pair.with_query(box)) for box in changed), key=lambda item: item[0])


PAIRINGS["stored"] = lambda stories, number: [stories.other_objects(number), stories.tracing(number, DIAGNOSTIC_MODE)]
PAIRINGS["tracing"] = lambda stories, number, mode: [counterfactual(stories, number, mode)]
PAIRINGS["questions"] = lambda stories, number, mode: [
    pair for _, pair in pairs_by_question(stories.tracing(number, mode))
]
