"""Costs of a block, of a whole request, and of a model that is known by its shape alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from rebinding.cost.blocks import first_block
from rebinding.cost.fake_device import FakeDevice, fake_accelerator
from rebinding.cost.hollow_model import STAND_IN, model_facts, published, stretched
from rebinding.cost.source import CostSource, NotCosted
from rebinding.cost.table import CostLine, Costs, ModelSize, grouped
from rebinding.evidence import Request
from rebinding.experiments.binding.conditions import Shift
from rebinding.experiments.binding.request import request_shifts
from rebinding.experiments.circuit.request import (
    ORDERS,
    request_ablation,
    request_contributions,
    request_knockout,
    request_pruning,
)
from rebinding.experiments.paths.request import STAGE_BY_NAME, request_paths
from rebinding.experiments.prompts import Stories, draw_noise_pairs
from rebinding.experiments.roles.request import Counterfactual, request_interchange
from rebinding.experiments.search.request import request_crossings
from rebinding.experiments.table import experiment_of
from rebinding.experiments.tracing.request import answered_ids, request_diagnostic, request_map
from rebinding.experiments.unedited import request_ability, request_floors
from rebinding.experiments.workbench import REMEMBERED, tensor_requests
from rebinding.models import load
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.numbers import circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.study.gates import gates_of
from rebinding.task.designs import ModeName
from tests.cost.small import HEADS, flop, make_source, remembered
from tests.models.folders import save_tiny

TOLERANCE = 0.2
"""The largest relative error of a cost: the promise of `--cost`."""
PUBLISHED, CONTROLLED = builtin_procedure("published"), builtin_procedure("controlled")
AFTER_LABELS = ("swap_first", "swap_second", "swap_period", "question_box", "readout")


class EmptyCache(dict[Hashable, Any]):
    """Stores nothing."""

    def __setitem__(self, key: Hashable, value: Any) -> None:
        pass


@pytest.fixture(scope="module")
def source() -> CostSource:
    return make_source()


def map_request(prompts: Stories, n: int, mode: ModeName = "swap_only") -> Request:
    design = prompts.design("published")
    return request_map(prompts, design, range(n), mode, AFTER_LABELS, PUBLISHED.tracing)


def shift_request(prompts: Stories, n: int, batches: int = 1, directions: int = 4) -> Any:
    conventions = replace(CONTROLLED.binding, batches=batches)
    return request_shifts(prompts, HEADS, "published", "controlled", conventions, n=n, directions=directions, draws=1)


def requests(prompts: Stories) -> Iterator[Request]:
    """Kinds of several sizes of block, each of more than one block."""
    design, conventions = prompts.design("published"), CONTROLLED.circuit
    yield request_ability(prompts, design, 40)
    yield map_request(prompts, 40)
    yield request_diagnostic(prompts, design, 40, PUBLISHED.tracing)
    yield request_paths(draw_noise_pairs(prompts, conventions, 32), STAGE_BY_NAME["A"], (), conventions)
    yield request_ablation(prompts, HEADS, design, "published", n=40, comparison="groups")
    yield request_interchange(prompts, HEADS, design, "pointer", 40, PUBLISHED.roles)
    yield request_knockout(prompts, design, HEADS, 40)
    yield request_contributions(prompts, design, HEADS, 40, conventions=conventions)
    yield request_floors(prompts, design, "bfloat16")
    yield shift_request(prompts, 72)


@pytest.mark.slow
def test_single_block_gives_the_cost_of_the_request(source: CostSource) -> None:
    for request in requests(source.bench.prompts):
        evidence = source.get(request)
        assert [gate.name for gate in gates_of(request, evidence) if not gate.passed] == [], request.KIND.name
        line = source.lines[request.key]
        assert line.blocks > 1
        assert line.flop == pytest.approx(flop(source, request), rel=TOLERANCE), line.name


def test_the_cost_of_a_block_does_not_depend_on_earlier_blocks() -> None:
    """A run remembers its last few blocks; here there is only one block, which would always be remembered."""
    source = make_source()
    request = request_ability(source.bench.prompts, source.bench.prompts.design("published"), 40)
    lines = []
    for _ in range(2):
        source._blocks.clear()
        source.get(request)
        lines.append(source.lines[request.key])
    assert lines[0] == lines[1]


def test_other_words_are_not_run_again(source: CostSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cost the same, as a run of their own shows."""
    prompts, conventions = source.bench.prompts, PUBLISHED.circuit
    pairs = [draw_noise_pairs(prompts, replace(conventions, noise=(noise,)), 16) for noise in conventions.noise]
    first, second, *_ = (request_paths(pair, STAGE_BY_NAME["A"], (), conventions) for pair in pairs)
    assert first != second
    source.get(first)
    monkeypatch.setattr(source, "_measure", lambda run: pytest.fail("run again"))
    source.get(second)
    monkeypatch.undo()
    assert source.lines[first.key] == source.lines[second.key]
    fresh_source = make_source()
    fresh_source.get(second)
    assert fresh_source.lines[second.key] == source.lines[second.key]


def test_the_op_cache_does_not_change_costs() -> None:
    """FLOP, bytes moved and the peak of memory are the same with the cache and without it."""
    costs = []
    for forget in (True, False):
        source = make_source()
        if forget:
            source.fake_device.op_cache = EmptyCache()
        ledger, prompts = source.fake_device.ledger, source.bench.prompts
        design = prompts.design("published")
        work = [flop(source, map_request(prompts, 4))]
        work.append(flop(source, request_interchange(prompts, HEADS, design, "pointer", 4, PUBLISHED.roles)))
        costs.append((work, ledger.bytes_moved, ledger.peak[fake_accelerator()]))
    assert costs[0] == costs[1]


def test_a_second_block_uses_the_op_cache(source: CostSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on 48 layers makes millions of operations; at a millisecond each it would not end in an hour."""
    uncached: list[Any] = []
    run_on_device = FakeDevice.run_on_device

    def count(self: FakeDevice, operation: Any, *args: Any) -> Any:
        uncached.append(operation)
        return run_on_device(self, operation, *args)

    monkeypatch.setattr(FakeDevice, "run_on_device", count)
    counts = []
    for n in (3, 3):
        uncached.clear()
        flop(source, map_request(source.bench.prompts, n))
        counts.append(len(uncached))
    assert counts[1] < counts[0] / 20


def test_every_original_counts_as_right(source: CostSource) -> None:
    """So the first prompts are traced, and no more are looked through."""
    prompts = source.bench.prompts
    design = prompts.design("published")
    ids = answered_ids(prompts, design, "swap_only", 30, PUBLISHED.tracing, source.get)
    assert ids == list(range(30))


def test_averages_have_a_line_of_their_own() -> None:
    """Directions of 100 prompts are one line, however few were run, and once for all shifts."""
    source = make_source()
    request = shift_request(source.bench.prompts, 72, batches=2, directions=100)
    source.get(request)
    names = [line.name for line in source.lines.values()]
    assert names == ["directions, balanced", "directions, balanced", "binding, controlled, balanced"]
    first, second, shifts = source.lines.values()
    assert (first, first.n, first.blocks) == (second, 100, 5)
    assert shifts.flop / shifts.blocks / 2 < first.flop
    source.get(replace(request, variation="another"))
    assert len(source.lines) == 4


def test_single_batch_of_directions_represents_all(source: CostSource) -> None:
    """On shapes this is exact: every batch edits the same places of the same prompts."""
    request = shift_request(source.bench.prompts, 36, batches=3)
    evidence = source.get(request)
    assert sorted(evidence.rows["draw"].unique()) == [0, 1, 2]
    recordings = remembered(source)
    limit, recordings.limit = recordings.limit, 0
    try:
        block = first_block(request, source.bench)
        assert block.repeats == 3
        assert 3 * flop(source, block.request) == flop(source, request)
    finally:
        recordings.limit = limit


def test_some_steps_of_a_walk_represent_all(source: CostSource) -> None:
    """Every head of two groups."""
    places = product((("A", "readout"), ("C", "question_box")), range(3), range(4))
    heads = Circuit(tuple(CircuitHead(group, layer, head, role) for (group, role), layer, head in places))
    request = request_pruning(source.bench.prompts, heads, PUBLISHED.circuit, n=2)
    assert first_block(request, source.bench).repeats == 24 / 12
    line, evidence = _cost(source, request), source.get(request)
    assert line.flop == pytest.approx(flop(source, request), rel=TOLERANCE)
    assert len(evidence.rows) == ORDERS * len(heads.heads)


def test_words_make_little_difference(source: CostSource) -> None:
    """Requests that differ in words cost about the same."""
    prompts = source.bench.prompts
    design = prompts.design("published")
    modes: list[ModeName] = ["swap_only", "swap_target_box_to_remaining_context_box"]
    pairings: list[Counterfactual] = ["pointer", "content_control"]
    for requests in (
        [map_request(prompts, 3, mode) for mode in modes],
        [request_interchange(prompts, HEADS, design, pairing, 3, PUBLISHED.roles) for pairing in pairings],
        [request_pruning(prompts, HEADS, procedure.circuit, n=2) for procedure in (PUBLISHED, CONTROLLED)],
    ):
        first, second = (_cost(source, request).flop for request in requests)
        assert first == pytest.approx((first + second) / 2, rel=TOLERANCE), requests[0].label


def _cost(source: CostSource, request: Request) -> CostLine:
    source.get(request)
    return source.lines[request.key]


def test_the_size_of_shifts_is_computed_once_per_condition(source: CostSource, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 200 random directions, once a draw would be 40,000 sizes of vectors."""
    calls: list[Shift] = []
    relative_change = Shift.relative_change

    def count(self: Shift, *args: Any) -> Any:
        calls.append(self)
        return relative_change(self, *args)

    monkeypatch.setattr(Shift, "relative_change", count)
    prompts, conventions = source.bench.prompts, PUBLISHED.binding
    request = request_shifts(prompts, HEADS, "published", "random directions", conventions, n=2, directions=2, draws=3)
    source.get(request)
    assert len(calls) == len(request.conditions)


def test_a_search_is_not_costed(source: CostSource) -> None:
    prompts = source.bench.prompts
    request = request_crossings(prompts, prompts.design("published"), HEADS, 12)
    with pytest.raises(NotCosted, match="not costed: crossings"):
        source.get(request)
    assert request.key not in source.lines


def test_memory_counts_what_earlier_requests_keep() -> None:
    line = CostLine("a", 10, 1, 5, 1.0, 2.0, 3.0, 60.0, temporary_bytes=7, retained_bytes=100)
    costs = Costs(
        ModelSize("m", 83, weights=1000),
        (line, replace(line, name="b", retained_bytes=0), replace(line, retained_bytes=3)),
    )
    assert costs.peak == 1000 + REMEMBERED + 103 + 7
    assert (costs.flop, costs.seconds) == (3.0, 180.0)
    assert [(line.name, count) for line, count in grouped(costs.lines)] == [("a", 2), ("b", 1)]


def test_memory_that_further_blocks_keep_is_counted() -> None:
    """Path patching in two blocks keeps each noise prompt's z at the sender, and that of one block is here; a second
    request adds nothing. Recordings stay with the surgeon, however many blocks there are: a run of all claims would
    fill any device with them."""
    source, conventions = make_source(), CONTROLLED.circuit
    ledger, place = source.fake_device.ledger, fake_accelerator()
    request = request_paths(
        draw_noise_pairs(source.bench.prompts, conventions, 32), STAGE_BY_NAME["A"], (), conventions
    )
    before = ledger.live[place]
    source.get(request)
    live = ledger.live[place] - before - remembered(source).bytes()
    assert source.missing_bytes == source.lines[request.key].retained_bytes - live == live
    source.get(request)
    assert source.missing_bytes == live
    remembered(source).entries.clear()
    anatomy = source.bench.loaded_model.anatomy
    float32, width = 4, sum(parts.n_heads * parts.head_dim for parts in anatomy.parts)
    assert ledger.live[place] - before == 16 * width * float32, "a token of each of the 16 prompts of a block"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model as somebody might have it."""
    return save_tiny(tmp_path / "tiny")


def test_facts_about_a_folder_without_weights(folder: Path) -> None:
    model = load(str(folder))
    encoder = model.encoder()
    length = len(encoder.encode([Stories(encoder).design("published").prompt(0)])[0])
    (folder / "model.safetensors").unlink()
    facts = model_facts(str(folder))
    assert (facts.config.num_hidden_layers, facts.config.hidden_size) == (model.anatomy.n_layers, model.anatomy.hidden)
    assert (facts.tokens, facts.dtype, facts.circuit_of) == (length, "float32", STAND_IN)
    facts.heads.check(model.anatomy.n_layers, model.anatomy.n_heads)


@pytest.mark.parametrize(("layers", "width"), [(30, 9), (48, 16), (6, 6)])
def test_a_stretched_circuit_has_every_group_and_leaves_half_of_a_layer(layers: int, width: int) -> None:
    heads = stretched(published(STAND_IN), range(layers), width).check(layers, width)
    assert heads.groups.keys() == published(STAND_IN).groups.keys()
    cost = Counter(layer for layer, _ in {(head.layer, head.head) for head in heads.heads})
    assert max(cost.values()) <= width // 2
    depth = {name: [head.layer / layers for head in group] for name, group in heads.groups.items()}
    assert min(depth["A"]) > max(depth["D"])


def test_facts_about_the_papers_models() -> None:
    facts = model_facts("gemma2-9b", tokens=90)
    assert (facts.tokens, facts.dtype, facts.circuit_of) == (90, "bfloat16", None)
    assert facts.heads == Circuit(circuit("gemma2-9b"))
    assert model_facts("shape:gemma2-9b").tokens == 83


def test_a_plant_has_no_costs() -> None:
    with pytest.raises(ValueError, match="judged in minutes"):
        model_facts("planted:pointer@llama")


BMM = torch.ops.aten.bmm.default


def test_weights_are_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source()
    bench, dispatch, products = source.bench, FakeDevice.__torch_dispatch__, []

    def note_products(device: Any, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation == BMM:
            products.append((tuple(args[0].shape), args[1].stride(0)))
        return dispatch(device, operation, types, args, kwargs)

    design = bench.prompts.design("published")
    for request in (
        map_request(bench.prompts, 4),
        request_ablation(bench.prompts, HEADS, design, "published", n=2, comparison="groups"),
    ):
        for needed in tensor_requests(request):
            source._add_tensors(needed)
        with monkeypatch.context() as patch, source.fake_device:
            patch.setattr(FakeDevice, "__torch_dispatch__", note_products)
            products.clear()
            experiment_of(type(request)).run(bench, request)
        assert [shape for shape, stride in products if stride == 0 and shape[0] > 1] == [], request.label
        assert products, "scores and mixtures of attention are such products"
