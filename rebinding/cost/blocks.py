"""The block of a request that is run to count its cost, which requests cost the same, and the name of their line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from rebinding.evidence import OnPrompts, PromptSet, Request
from rebinding.experiments.ablation import Ablation
from rebinding.experiments.attention import AttentionToRoles
from rebinding.experiments.binding.request import Exchange, MeanVectors, Shifts
from rebinding.experiments.binding.swap_labels import LabelExchange
from rebinding.experiments.circuit.request import Pruning
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.prompts import EncodedPrompts, Stories
from rebinding.experiments.roles.request import Interchange
from rebinding.experiments.tracing.request import OfMode, ReadoutDiagnostic, TracingMap
from rebinding.experiments.workbench import Workbench
from rebinding.paper.circuit import CircuitHead
from rebinding.task.prompts import Encoded

TRACED = (("tracing",), ("questions",))
"""Pairings of section 3."""
STEPS = 16
"""The most heads whose removal is run: all steps of a walk are batches of the same kind."""


@dataclass(frozen=True)
class CostedPart:
    """A request on the first block of its prompts. `block` of `n` prompts are run, and the cost of each block is
    multiplied by `repeats`, but for that of the request `once`, which is a part of it."""

    request: Request
    n: int
    block: int
    repeats: float = 1
    once: Request | None = None

    @property
    def blocks(self) -> int:
        """The number of blocks; the last one may be smaller."""
        return -(-self.n // self.block)


def first_block(request: Request, bench: Workbench) -> CostedPart:
    """The part of a request that is run: a block of evidence, or as many prompts as the surgeon takes at once.

    Of several sets of directions it has one, since all of them edit the same positions of the same prompts; of a long
    pruning walk it has some steps.
    """
    prompts = bench.prompts
    if isinstance(request, MeanVectors):
        first, *_ = prompts.encode(request.slots[0]).prompts
        block = min(request.n, bench.surgeon.prompts_at_once(len(first)))
        slots = tuple(prompts.add(prompts.encode(slot).part(0, block)) for slot in request.slots)
        return CostedPart(replace(request, slots=slots), request.n, block)
    if not isinstance(request, OnPrompts):
        raise TypeError(f"{request.KIND.name} is a request without prompts; add a case for it to `first_block`")
    n = len(request.prompts.ids)
    block = min(n, _size(request, bench) or n)
    part, repeats, once = prompts.part(request, 0, block), 1.0, None
    if isinstance(part, Shifts):
        part, repeats = replace(part, batches=part.batches[:1]), len(part.batches)
    if isinstance(part, LabelExchange):
        part, repeats = replace(part, batches=part.batches[:1]), len(part.batches)
    if isinstance(part, Pruning) and len(part.circuit) > STEPS:
        subset = part.circuit[:: -(-len(part.circuit) // STEPS)]
        repeats = len(part.circuit) / len(subset)
        part, once = replace(part, circuit=subset), replace(part, circuit=())  # recordings, and a score of no head
    return CostedPart(part, n, block, repeats, once)


def _size(request: OnPrompts, bench: Workbench) -> int | None:
    """The number of prompts of a block; None for all of them. Section 5 edits prompts in whole balanced blocks."""
    if not request.PER_PROMPT:
        return None
    if isinstance(request, (Shifts, Exchange)) and request.prompts.design == "counterbalanced":
        balanced = bench.prompts.plan(request.prompts).block
        return balanced * max(1, bench.prompts_at_once(request) // balanced)
    return bench.prompts_at_once(request)


def shape_of(request: Request, prompts: Stories) -> Hashable:
    """Everything that the cost of a request depends on. Requests with other words but the same tokens in the same
    positions cost the same; of receivers and pruned heads only the number at each layer matters."""
    if isinstance(request, Paths):
        layers = Counter(layer for layer, _ in request.receivers)
        return _shape(replace(request, receivers=()), prompts), tuple(sorted(layers.items()))
    if isinstance(request, MeanVectors):  # read at the slots, whatever the question
        lengths = tuple(tuple(map(len, prompts.encode(slot).prompts)) for slot in request.slots)
        return _shape(replace(request, slots=()), prompts), lengths
    if isinstance(request, Pruning):
        circuit = sorted((head.group, head.layer, head.role) for head in request.circuit)
        return _shape(replace(request, circuit=()), prompts), tuple(circuit)
    if isinstance(request, OfMode):  # modes differ in their pairs, which are in the prompts
        return _shape(replace(request, mode="swap_only"), prompts)
    return _shape(request, prompts)


def _shape(value: Any, prompts: Stories) -> Hashable:
    if isinstance(value, PromptSet):
        return _layout(prompts.encode(value))
    if isinstance(value, CircuitHead):
        return value
    if isinstance(value, tuple):
        return tuple(_shape(item, prompts) for item in value)
    if is_dataclass(value):
        return type(value).__name__, *(_shape(getattr(value, field.name), prompts) for field in fields(value))
    return value  # type: ignore[no-any-return]  # the plain values of a frozen, hashable request


def _layout(encoded: EncodedPrompts) -> Hashable:
    """The layout of prompts without their words: lengths, positions of roles, numbers of objects; and the tokens at
    which pairs differ, where residuals are patched between them."""
    pairing = encoded.request.pairing[:1]
    exchanged = encoded.counterfactuals if pairing in TRACED else ()
    partners: tuple[Encoded | None, ...] = exchanged or (None,) * len(encoded.prompts)
    places = [_places(prompt, partner) for prompt, partner in zip(encoded.prompts, partners, strict=True)]
    return pairing, encoded.request.cut, tuple(sorted(places)), tuple(sorted(Counter(encoded.sizes).items()))


def _places(encoded: Encoded, partner: Encoded | None) -> tuple[Any, ...]:
    pairs = () if partner is None else zip(encoded.ids, partner.ids, strict=False)
    differing = tuple(position for position, (id, partner_id) in enumerate(pairs) if id != partner_id)
    objects = sum(word is not None for word in encoded.prompt.story.state().values())
    return len(encoded), tuple(sorted(encoded.roles.items())), differing, objects


def name_of(request: Request) -> str:
    """The name of a cost line: the kind of a request, and what its cost depends on, without its prompts' words."""
    match request:
        case Paths():
            name = _path(request)
        case Pruning():
            name = f"pruning of {len(request.circuit)} heads"
        case Ablation():
            name = f"{request.KIND.name}, vs {request.comparison}"
        case Interchange():
            name = f"roles, {request.mode}{', single heads' if request.single_heads else ''}"
        case Shifts():
            name = f"binding, {request.variation}"
        case TracingMap():
            name = "map" if request.roles is None else f"map of {len(request.roles)} roles"
        case ReadoutDiagnostic():
            name = request.KIND.name + (", all windows" if request.all_windows else "")
        case AttentionToRoles():
            name = f"attention of {len(request.heads)} heads"
        case _:
            name = request.KIND.name
    return name + "".join(f", {text}" for text in _describe(_prompts(request)))


def _path(request: Paths) -> str:
    receivers = "logits" if request.stage.receivers is None else f"{len(request.receivers)} heads"
    kind = "link" if request.senders is not None else "paths"
    return f"{kind} {request.stage.group} to {receivers}{', all frozen' if request.settings.frozen == 'all' else ''}"


def _prompts(request: Request) -> PromptSet:
    prompts: PromptSet | None = getattr(request, "prompts", None)
    return request.slots[0] if prompts is None else prompts  # type: ignore[attr-defined]  # directions: a set per slot


def _describe(prompts: PromptSet) -> list[str]:
    """How prompts differ from the default ones, except in their words."""
    properties = {
        "balanced": prompts.design == "counterbalanced",
        f"{prompts.boxes} boxes": prompts.boxes != 3,
        f"{prompts.operations} {prompts.verb}s": prompts.operations != 1,
        f"a {prompts.verb}": prompts.operations == 1 and prompts.verb != "swap",
        "narrative": prompts.narrative,
        f"wording {prompts.wording}": prompts.wording != "published",
        f"{prompts.cut} tokens earlier": prompts.cut > 0,
    }
    return [text for text, applies in properties.items() if applies]
