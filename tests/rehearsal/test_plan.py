"""A plan rehearses a part and multiplies it: each multiplication is held against the whole, on a small shape."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rebinding.evidence import Request
from rebinding.experiments.anywhere.request import Crossings
from rebinding.experiments.binding.conditions import Shift
from rebinding.experiments.circuit.request import Means
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import given
from rebinding.rehearsal import agenda
from rebinding.rehearsal.agenda import Item
from rebinding.rehearsal.plan import rehearsed
from rebinding.rehearsal.pretended import Pretence, pretended
from rebinding.rehearsal.subject import Rehearsing, hollow_bench
from rebinding.study import binding, circuit, floors, replays, roles, tracing
from rebinding.study.bench import MEASURES, TENSORS, Bench
from rebinding.surgery.memory import CPU_BUDGET
from rebinding.surgery.remembered import Recordings
from tests.rehearsal.test_against_runs import SIZES, TOKENS, overrides

HEADS = Circuit(tuple(CircuitHead(group, layer, 1, role) for group, layer, role in (
    ("A", 2, "readout"), ("B", 2, "readout"), ("B", 1, "readout"), ("C", 1, "question_box"), ("D", 1, "swap_partner"),
)))  # fmt: skip
WITHIN = 0.2
"""How far what one request stands for may be off: the promise of a plan."""


class Forgetful(dict[Hashable, Any]):
    """Keeps nothing."""

    def __setitem__(self, key: Hashable, value: Any) -> None:
        pass


def made() -> tuple[Bench, Pretence]:
    pretence = Pretence(hollow=True)
    with pretence:
        bench = hollow_bench(
            "gemma2-9b",
            pretence,
            dtype="float32",
            tokens=TOKENS,
            budget=lambda: CPU_BUDGET,
            **overrides(*SIZES["small"]),
        )
    return bench, pretence


@pytest.fixture(scope="module")
def there() -> tuple[Bench, Pretence]:
    return made()


def remembered(bench: Bench) -> Recordings:
    """The recordings that the surgeon of a hollow bench keeps."""
    assert isinstance(bench.surgeon, Rehearsing)
    return bench.surgeon.recordings


def flop(there: tuple[Bench, Pretence], request: Request) -> int:
    """What a request takes if nothing is remembered from before."""
    bench, pretence = there
    with pretence:
        remembered(bench).kept.clear()
        pretence.ledger.reset()
        bench.measured(request)
    return pretence.ledger.flop


def mapped(bench: Bench, n: int) -> Request:
    drawn = bench.design("published")
    return tracing.traced(bench, drawn, "swap_only", agenda.AFTER_LABELS, n, given("published").tracing)


def test_a_block_takes_the_same_whatever_was_run_before(there: tuple[Bench, Pretence]) -> None:
    """Of a run's blocks the last few are remembered; a rehearsal has one block, which would be remembered always."""
    bench, pretence = there
    item = Item("ability", 40, 4, lambda n: circuit.ability(bench, bench.design("published"), n))
    with pretence:
        first, again = rehearsed(bench, pretence, iter([item, item]))
    assert (first.flop, first.seconds, first.extra) == (again.flop, again.seconds, again.extra)


def test_what_is_worked_out_once_costs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOP, bytes moved and the peak of memory, with every operation worked out anew and with those alike looked up."""
    costs = []
    for forget in (True, False):
        bench, pretence = made()
        if forget:
            pretence.alike = Forgetful()
        with pretence:
            pretence.ledger.reset()
            bench.measured(mapped(bench, 4))
            roled = roles.interchanged(bench, HEADS, bench.design("published"), "pointer", 4, given("published").roles)
            bench.measured(roled)
        costs.append((pretence.ledger.flop, pretence.ledger.moved, pretence.ledger.peak[pretended()]))
    assert costs[0] == costs[1]


def test_of_a_second_block_little_is_worked_out(there: tuple[Bench, Pretence], monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of 48 layers makes millions of operations; at a millisecond each it would not end in an hour."""
    bench, _ = there
    anew: list[Any] = []
    carry_out = Pretence._carried_out

    def counted(self: Pretence, operation: Any, *given: Any) -> Any:
        anew.append(operation)
        return carry_out(self, operation, *given)

    monkeypatch.setattr(Pretence, "_carried_out", counted)
    counts = []
    for _ in range(2):
        anew.clear()
        flop(there, mapped(bench, 4))
        counts.append(len(anew))
    assert counts[1] < counts[0] / 20


def test_every_original_counts_as_right(there: tuple[Bench, Pretence]) -> None:
    """The search for originals that are answered correctly is rehearsed as one recording and not as five."""
    bench, pretence = there
    with pretence:
        evidence = bench.measured(mapped(bench, 4))
    assert evidence.rows["prompt"].nunique() == 4
    assert min(evidence.rows["prompt"]) + 3 == max(evidence.rows["prompt"])


def test_averages_are_no_part_of_what_needs_them(there: tuple[Bench, Pretence]) -> None:
    """Directions of 100 prompts are a line of their own, however few of them were rehearsed."""
    bench, pretence = there
    items = [one for one in agenda.agenda(bench, HEADS) if one.name in ("directions, published", "binding, published")]
    with pretence:
        measured, shifts = rehearsed(bench, pretence, iter(items))
        assert items[0].make(items[0].n) in bench.tensors
    assert shifts.flop / shifts.item.blocks < measured.flop


def test_what_may_have_been_read_at_two_tokens_is_asked_twice(there: tuple[Bench, Pretence]) -> None:
    """Of models that are asked as Llama, in the rows as published."""
    bench, _ = there
    once, twice = ({one.name: one.times for one in agenda.agenda(bench, HEADS, form=form)} for form in (None, "llama3"))
    more = {name: (once[name], times) for name, times in twice.items() if times != once[name]}
    assert more == {
        "ability, 3 boxes": (2, 3),
        "directions, published": (1, 2),
        "roles, published, published": (2, 4),
        "roles, paper, published": (2, 4),
        "binding, published": (1, 2),
    }


def siblings(bench: Bench) -> Iterator[tuple[str, list[Callable[[int], Request]]]]:
    """Requests of which the agenda rehearses the first for all."""
    ways = [given(name) for name in agenda.GIVEN]
    yield (
        "first mention",
        [partial(_mentioned, bench, way.tracing, mode, context) for way in ways for mode, context in agenda.MENTIONS],
    )
    for at, modes in ((agenda.AFTER_LABELS, agenda.LABELS), (agenda.EVERYWHERE, ("target_box",))):
        yield "map", [partial(_traced, bench, way.tracing, mode, at) for way in ways for mode in modes]
    yield (
        "diagnostic",
        [partial(_diagnosed, bench, way.tracing) for way in ways],
    )
    yield "roles", [partial(_roled, bench, pairing) for pairing in agenda.PAIRINGS]
    yield "pruning", [partial(_pruned, bench, way.circuit) for way in ways]


def _mentioned(bench: Bench, way: Any, mode: Any, context: str, n: int) -> Request:
    return tracing.mentioned(bench, tracing.planned(bench, way, "published", 3), mode, context, "swap_asked", n, way)


def _traced(bench: Bench, way: Any, mode: Any, at: tuple[str, ...], n: int) -> Request:
    return tracing.traced(bench, tracing.planned(bench, way, "published", 3), mode, at, n, way)


def _diagnosed(bench: Bench, way: Any, n: int) -> Request:
    return tracing.diagnosed(bench, tracing.planned(bench, way, "published", 3), n, way)


def _pruned(bench: Bench, way: Any, n: int) -> Request:
    return circuit.pruned(bench, HEADS, way, n=n)


def _roled(bench: Bench, pairing: Any, n: int) -> Request:
    return roles.interchanged(bench, HEADS, bench.design("published"), pairing, n, given("published").roles)


def test_one_stands_for_all(there: tuple[Bench, Pretence]) -> None:
    """The sum over modes, procedures and kinds of pairs, against the first multiplied."""
    bench, pretence = there
    with pretence:
        found = list(siblings(bench))
    for what, makes in found:
        with pretence:
            asked = [make(6) for make in makes]
        flops = [flop(there, one) for one in asked]
        assert len(flops) * flops[0] == pytest.approx(sum(flops), rel=WITHIN), (what, flops)


def test_one_batch_of_directions_stands_for_all(there: tuple[Bench, Pretence]) -> None:
    """On shapes this is exact: every batch edits the same places of the same prompts."""
    bench, pretence = there
    way = replace(given("controlled").binding, batches=3)
    with pretence:
        whole = binding.shifted(bench, HEADS, "published", "controlled", way, n=4, directions=4, draws=1)
        for vectors in whole.batches:
            bench.tensors[vectors] = bench.tensors.get(vectors) or _measured(bench, whole.batches[0])
    recordings = remembered(bench)
    limit, recordings.limit = recordings.limit, 0
    try:
        one = flop(there, replace(whole, batches=whole.batches[:1]))
        assert way.batches * one == flop(there, whole)
    finally:
        recordings.limit = limit


def test_how_far_shifts_go_is_worked_out_once_a_condition(
    there: tuple[Bench, Pretence], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 200 random directions, once a draw would be 40,000 sizes of vectors."""
    bench, _ = there
    calls: list[Shift] = []
    moved = Shift.moved

    def counted(self: Shift, *given: Any) -> Any:
        calls.append(self)
        return moved(self, *given)

    monkeypatch.setattr(Shift, "moved", counted)
    with there[1]:
        way = given("published").binding
        asked = binding.shifted(bench, HEADS, "published", "random directions", way, n=2, directions=2, draws=3)
    flop(there, asked)
    assert len(calls) == len(asked.conditions)


def _measured(bench: Bench, vectors: Any) -> Any:
    bench.averaged(vectors)
    return bench.tensors[vectors]


def test_the_agenda_has_every_kind_of_request(there: tuple[Bench, Pretence]) -> None:
    """Whatever the study can be asked for. Replays and floors compare numbers: gates, on few prompts. And where a
    search that is told no place goes, numbers decide: without them there is nothing to rehearse."""
    bench, pretence = there
    with pretence:
        kinds = {type(item.make(min(item.block, item.n))) for item in agenda.agenda(bench, HEADS)}
    assert kinds == ({*MEASURES} | {*TENSORS}) - {replays.Replays, floors.Floors, Crossings}
    assert Means in kinds
