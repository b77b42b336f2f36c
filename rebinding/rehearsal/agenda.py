"""What judging one of the paper's models asks of it: every request of `pytest -m gpu`, cut to one block.

The receivers of path patching are the published groups, those of discovery before pruning have not been published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rebinding.evidence import Request
from rebinding.experiments.circuit.paths import PathSettings
from rebinding.experiments.readout import BLOCK
from rebinding.paper.circuit import Circuit
from rebinding.study import binding, circuit, roles, tracing
from rebinding.study.bench import Bench
from rebinding.study.case import DIRECTIONS, PAPER
from rebinding.world.designs import Design, DesignName, ModeName

LABELS: tuple[tuple[ModeName, tuple[str, ...]], ...] = (
    ("context_and_swap", ("context_asked",)),
    ("context_target_box_and_swap_query_box", ("context_partner",)),
    ("swap_only", ("swap_asked", "readout")),
    ("swap_target_box_to_remaining_context_box", ("swap_partner", "readout")),
)
EVERYWHERE = (
    *("context_box", "context_partner_object", "swap_first", "swap_second"),
    *("swap_period", "question_box", "readout"),
)
"""The tokens of the maps that section 3 is judged on."""
N, BALANCED, PAIRS, ONE_BY_ONE = 300, 360, 100, 100


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

    @property
    def blocks(self) -> int:
        """How many blocks there are; the last one may be smaller."""
        return -(-self.n // self.block)


def agenda(bench: Bench, heads: Circuit) -> Iterator[Item]:
    """In the order in which a run comes to them."""
    yield from _able_and_traced(bench)
    yield from _circuit(bench, heads)
    drawn = bench.design("published")
    for pairing in ("pointer", "content_control"):
        yield Item(
            f"roles, {pairing}",
            N,
            BLOCK,
            lambda n, p=pairing: roles.interchanged(bench, heads, drawn, p, n),  # type: ignore[misc]
        )
    designs: tuple[DesignName, ...] = ("published", "counterbalanced")
    for name in designs:
        size = DIRECTIONS if name == "published" else 108
        yield Item(
            f"directions, {name}", size, BLOCK if name == "published" else 36, averaged=True,
            make=lambda n, d=name: binding.vectors(bench, d, heads.group("B"), n),  # type: ignore[misc]
        )  # fmt: skip
    for variation in binding.VARIATIONS:
        balanced = variation == "counterbalanced"
        yield Item(
            f"binding, {variation}", BALANCED if balanced else N, BLOCK if not balanced else 36,
            lambda n, v=variation: binding.shifted(bench, heads, "published", v, n=n, directions=DIRECTIONS),  # type: ignore[misc]
        )  # fmt: skip


def _able_and_traced(bench: Bench) -> Iterator[Item]:
    for boxes in (3, tracing.WIDE):
        drawn = tracing.story(bench, "published", boxes)
        told = f", {boxes} boxes"
        yield Item(f"ability{told}", PAPER["able"], BLOCK, lambda n, d=drawn: circuit.ability(bench, d, n))  # type: ignore[misc]
        for mode, at in (*LABELS, ("target_box", EVERYWHERE)):
            yield Item(f"map {mode}{told}", N, BLOCK, _mapped(bench, drawn, mode, at))
        yield Item(f"diagnostic{told}", N, BLOCK, lambda n, d=drawn: tracing.diagnosed(bench, d, n))  # type: ignore[misc]


def _mapped(bench: Bench, drawn: Design, mode: ModeName, at: tuple[str, ...]) -> Callable[[int], Request]:
    return lambda n: tracing.traced(bench, drawn, mode, at, n)


def _circuit(bench: Bench, heads: Circuit) -> Iterator[Item]:
    for name, stage in circuit.STAGES.items():
        receivers = heads.group(stage.receivers) if stage.receivers else ()
        if stage.receivers and not receivers:
            continue
        yield Item(
            f"path patching {name}", PAIRS, PathSettings().block, times=1 if name == "D literal" else 2,
            make=lambda n, s=stage, r=receivers: circuit.link(circuit.noise_pairs(bench, n), s, r),  # type: ignore[misc]
        )  # fmt: skip
    drawn, found_on = bench.design("published"), bench.design(circuit.FOUND_ON)
    for held in ("published", "counterbalanced"):
        size = circuit.PROMPTS_OF_MEANS[held]  # type: ignore[index]
        yield Item(f"means, {held}", size, size, lambda n, d=held: circuit.means_of(bench, drawn, d), averaged=True)  # type: ignore[misc]
    few = PAPER["pruned"]
    yield Item("pruning", few, few, lambda n: circuit.pruned(bench, heads, found_on, "published", n=n))
    for beside, size, times in (("groups", N, 2), ("heads", ONE_BY_ONE, 1), ("random", N, 4)):
        yield Item(
            f"ablation, {beside}", size, BLOCK, times=times,
            make=lambda n, b=beside: circuit.ablated(bench, heads, drawn, "published", n=n, beside=b),  # type: ignore[misc]
        )  # fmt: skip
