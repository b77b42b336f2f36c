"""What judging a model asks of it: every request of `pytest claims`, cut to one block.

The receivers of path patching are the published groups, those of discovery before pruning have not been published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

from rebinding.evidence import Request
from rebinding.experiments.circuit.paths import PRAKASH, PathSettings, Stage
from rebinding.experiments.circuit.request import Beside
from rebinding.experiments.readout import BLOCK
from rebinding.experiments.roles.request import Counterfactual
from rebinding.paper.circuit import Circuit, Head
from rebinding.paper.numbers import Group
from rebinding.paper.procedure import GIVEN, BindingWay, CircuitWay, Procedure, ProcedureName, TracingWay, given
from rebinding.paper.readouts import readouts
from rebinding.study import attention, binding, circuit, contributions, knockout, roles, static, stream, tracing
from rebinding.study.bench import DIRECTIONS as DIRECTIONS_FROM
from rebinding.study.bench import Bench
from rebinding.study.case import DIRECTIONS, DRAWS, PAPER
from rebinding.world.chat import Form
from rebinding.world.designs import Design, DesignName, ModeName

PAIRINGS: tuple[Counterfactual, ...] = get_args(Counterfactual)
LABELS: tuple[ModeName, ...] = ("swap_only", "swap_target_box_to_remaining_context_box")
AFTER_LABELS = ("swap_first", "swap_second", "swap_period", "question_box", "readout")
MENTIONS: tuple[tuple[ModeName, str], ...] = (
    ("context_and_swap", "context_asked"),
    ("context_target_box_and_swap_query_box", "context_partner"),
)
"""What section 3 asks of labels: maps from the swap on, and what a first mention adds."""
EVERYWHERE = (
    *("context_box", "context_partner_object", "swap_first", "swap_second"),
    *("swap_period", "question_box", "readout"),
)
"""The tokens of the maps that section 3 is judged on."""
LOOKING: tuple[Group, ...] = ("A", "B", "C")
"""The groups whose attention is asked for: of A and C the paper says what they look at, of B we ask."""
FROZEN = {"none": "", "all": ", frozen"}
"""What is added to the name of path patching where it is not known which it was."""
N, BALANCED, PAIRS, ONE_BY_ONE, FEW = 300, 360, 100, 100, 50


@dataclass(frozen=True)
class Item:
    """A kind of request: `n` prompts in all, `block` at a time, asked for `times` times.

    `make` gives the request on some prompts; `averaged` are requests for tensors.
    """

    name: str
    n: int
    block: int
    make: Callable[[int], Request]
    times: int = 1
    averaged: bool = False
    fixed: bool = False
    """Whether `--samples` leaves its number of prompts as it is."""

    @property
    def blocks(self) -> int:
        """How many blocks there are; the last one may be smaller."""
        return -(-self.n // self.block)


def agenda(bench: Bench, heads: Circuit, samples: int | None = None, form: Form | None = None) -> Iterator[Item]:
    """Every item, with the prompts that rows ask for by themselves or with as many as `--samples` says. `form` is the
    chat form of the model itself: of some it is not known which token was read."""
    for item in _everything(bench, heads, form):
        yield item if samples is None or item.fixed else replace(item, n=samples)


def _everything(bench: Bench, heads: Circuit, form: Form | None) -> Iterator[Item]:
    """Averages first, which others need; then in the order of the paper."""
    for boxes in (3, tracing.WIDE):
        drawn = tracing.story(bench, "published", boxes)
        early = len(readouts(given("published").roles.readout, form)) - 1 if boxes != tracing.WIDE else 0
        yield Item(f"ability, {boxes} boxes", PAPER["able"], BLOCK, partial(circuit.ability, bench, drawn), 2 + early)
        yield from _traced(bench, boxes)
    yield from _averages(bench, heads, form)
    for procedure in map(given, GIVEN):
        yield from _found(bench, heads, procedure)
        yield from _looked(bench, heads, procedure)
        yield from _roles(bench, heads, procedure, form)
    yield from _pruned(bench, heads)
    yield from _ablated(bench, heads)
    drawn, way = bench.design("published"), given("published").circuit
    yield Item("contributions", N, BLOCK, partial(contributions.contributed, bench, drawn, heads, way=way))
    yield Item("knockout", N, BLOCK, partial(knockout.knocked_out, bench, drawn, heads))
    carried = partial(stream.carried_on, bench, drawn, heads, way=way)
    yield Item("context stream", FEW, BLOCK, carried)
    yield from _static(bench, heads)
    yield from _binding(bench, heads, form)


def _traced(bench: Bench, boxes: int) -> Iterator[Item]:
    """Of modes that edit as many labels, and of the procedures, whose stories are as long, one stands for all."""
    way, ways = given("published").tracing, len(GIVEN)
    drawn = tracing.planned(bench, way, "published", boxes)
    (mode, context), (label, *_) = MENTIONS[0], LABELS
    told = f", {boxes} boxes"

    def mentioned(n: int) -> Request:
        return tracing.mentioned(bench, drawn, mode, context, "swap_asked", n, way)

    yield Item(f"first mention{told}", N, BLOCK, mentioned, times=ways * len(MENTIONS))
    after = _mapped(bench, drawn, label, AFTER_LABELS, way)
    yield Item(f"map, labels{told}", N, BLOCK, after, times=ways * len(LABELS))
    yield Item(f"map, objects{told}", N, BLOCK, _mapped(bench, drawn, "target_box", EVERYWHERE, way), times=ways)
    yield Item(f"diagnostic{told}", N, BLOCK, lambda n: tracing.diagnosed(bench, drawn, n, way), times=ways)


def _mapped(
    bench: Bench, drawn: Design, mode: ModeName, at: tuple[str, ...], way: TracingWay
) -> Callable[[int], Request]:
    return lambda n: tracing.traced(bench, drawn, mode, at, n, way)


def _found(bench: Bench, heads: Circuit, procedure: Procedure) -> Iterator[Item]:
    """Discovery, in every way that it may have been done; links, with the group's own heads as senders."""
    open_ = len(procedure.circuit.frozen) > 1
    asked: dict[tuple[Stage, str], list[tuple[CircuitWay, Stage | None]]] = {}
    for way in procedure.circuit.candidates.values():
        for stage, before in _stages(way):
            asked.setdefault((stage, way.frozen[0]), []).append((way, before))
    for (stage, frozen), ways in asked.items():
        receivers = heads.group(stage.receivers) if stage.receivers else ()
        if receivers or not stage.receivers:
            told = f"path patching {stage.group}{_heard(stage)}, {procedure.name}{FROZEN[frozen] if open_ else ''}"
            times = len({(way.noise, before) for way, before in ways})
            make = _sent(bench, stage, receivers, ways[0][0], None)
            yield Item(told, PAIRS, PathSettings().block, make, times=times)
    if procedure.name == "controlled":
        yield from _linked(bench, heads, procedure.circuit)


def _stages(way: CircuitWay) -> Iterator[tuple[Stage, Stage | None]]:
    """The stages of a discovery, each with the other reading of D if its receivers depend on it."""
    stages = circuit.STAGES_BY[way.d_heard_by[0]]
    by_d = next(one for one in stages if one.group == "D")
    yield from ((stage, by_d if stage.receivers == "D" else None) for stage in stages)


def _heard(stage: Stage) -> str:
    return " by query" if stage == circuit.STAGES["D literal"] else ""


def _linked(bench: Bench, heads: Circuit, way: CircuitWay) -> Iterator[Item]:
    for name, stage in circuit.STAGES.items():
        receivers, senders = heads.group(stage.receivers) if stage.receivers else (), heads.group(stage.group)
        if senders and (receivers or not stage.receivers):
            make = _sent(bench, stage, receivers, way, senders)
            yield Item(f"link {name}", PAIRS, PathSettings().block, make)


def _looked(bench: Bench, heads: Circuit, procedure: Procedure) -> Iterator[Item]:
    drawn = bench.design("published")
    for group in (one for one in LOOKING if heads.group(one)):
        make = partial(attention.looked, bench, drawn, heads, group=group, like=procedure.like)
        yield Item(f"what {group} looks at, {procedure.name}", N, BLOCK, make)


def _sent(
    bench: Bench, stage: Stage, receivers: Sequence[Head], way: CircuitWay, senders: Sequence[Head] | None
) -> Callable[[int], Request]:
    return lambda n: circuit.link(circuit.noise_pairs(bench, way, n), stage, receivers, way, senders)


def _roles(bench: Bench, heads: Circuit, procedure: Procedure, form: Form | None) -> Iterator[Item]:
    """One kind of pair stands for all: they differ in words, or by two tokens where it is not known what was read."""
    places = len(readouts(procedure.roles.readout, form))
    for way in roles.candidates(procedure.roles):
        drawn = roles.stories(bench, way, "published")
        make = partial(roles.interchanged, bench, heads, drawn, PAIRINGS[0], way=way)
        yield Item(f"roles, {way.places}, {procedure.name}", N, BLOCK, make, times=len(PAIRINGS) * places)


def _pruned(bench: Bench, heads: Circuit) -> Iterator[Item]:
    """The walk of one procedure stands for all: they differ in words, and in what heads are held at."""
    few, way = PAPER["pruned"], given("published").circuit
    times = sum(len(given(name).circuit.candidates) for name in GIVEN)
    yield Item("pruning", few, few, lambda n: circuit.pruned(bench, heads, way, n=n), times=times)


def _averages(bench: Bench, heads: Circuit, form: Form | None) -> Iterator[Item]:
    drawn = bench.design("published")
    held: tuple[DesignName, ...] = ("published", "counterbalanced")
    for name in held:
        size = circuit.PROMPTS_OF_MEANS[name]
        yield Item(f"means, {name}", size, size, partial(_means, bench, drawn, name), averaged=True, fixed=True)
        make = partial(_vectors, bench, name, heads.group("B"))
        like: ProcedureName = "controlled" if name == "counterbalanced" else "published"
        way = given(like).binding
        times = way.batches * len(readouts(way.readout, form))
        yield Item(f"directions, {name}", DIRECTIONS, BLOCK, make, times=times, averaged=True)


def _ablated(bench: Bench, heads: Circuit) -> Iterator[Item]:
    drawn = bench.design("published")
    kinds: tuple[tuple[Beside, int, int], ...] = (("groups", N, 2), ("heads", ONE_BY_ONE, 1), ("random", N, 4))
    for beside, size, times in kinds:
        yield Item(f"ablation, {beside}", size, BLOCK, partial(_held, bench, heads, drawn, beside), times=times)
    for told, other in (("seven boxes", bench.design("published", boxes=7)), ("narrative", _narrated(bench))):
        yield Item(f"ablation, {told}", N, BLOCK, partial(_held, bench, heads, other, "random"))


def _narrated(bench: Bench) -> Design:
    return bench.design("counterbalanced", narrative=True)


def _means(bench: Bench, drawn: Design, name: DesignName, n: int) -> Request:
    return circuit.means_of(bench, drawn, name)


def _held(bench: Bench, heads: Circuit, drawn: Design, beside: Beside, n: int) -> Request:
    return circuit.ablated(bench, heads, drawn, "published", n=n, beside=beside)


def _static(bench: Bench, heads: Circuit) -> Iterator[Item]:
    drawn, way = bench.design("published"), given("controlled").circuit
    elsewhere = {
        "without a swap": static.without_swap,
        "about a bystander": static.about_bystander,
        "about a refilled box": static.about_refilled,
        "beside a refilled box": static.beside_refilled,
    }
    for name, asked in elsewhere.items():
        yield Item(f"ablation, {name}", N, BLOCK, partial(asked, bench, drawn, heads))
    for stage in PRAKASH:
        receivers = heads.group(stage.receivers) if stage.receivers else ()
        make = partial(static.static_stage, bench, drawn.boxes, stage, receivers, way)
        yield Item(f"path patching {stage.group} without a swap", static.PAIRS, PathSettings().block, make, fixed=True)


def _binding(bench: Bench, heads: Circuit, form: Form | None) -> Iterator[Item]:
    """Of several batches of directions one is rehearsed: every batch runs the same prompts."""
    way = given("controlled").binding
    exchanged = partial(binding.exchanged, bench, bench.design("published"), heads, way=way)
    yield Item("binding, real queries and keys", BALANCED, BLOCK, exchanged)
    for variation in binding.VARIATIONS:
        balanced = variation == "controlled"
        way = given("controlled" if balanced else "published").binding
        make = partial(_shifted, bench, heads, variation, way)
        size, block = (BALANCED, 36) if balanced else (N, BLOCK)
        places = len(readouts(way.readout, form)) if variation == "published" else 1
        yield Item(f"binding, {variation}", size, block, make, times=way.batches * places)


def _vectors(bench: Bench, name: DesignName, heads: Sequence[Head], n: int) -> Request:
    return binding.vectors(bench, name, heads, range(DIRECTIONS_FROM, DIRECTIONS_FROM + n))


def _shifted(bench: Bench, heads: Circuit, variation: str, way: BindingWay, n: int) -> Request:
    asked = binding.shifted(bench, heads, "published", variation, way, n=n, directions=DIRECTIONS, draws=DRAWS)
    return replace(asked, batches=asked.batches[:1])
