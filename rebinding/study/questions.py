"""How a study asks for evidence: each piece is computed once, passes its gates, and is kept with what it took."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.experiments.circuit.request import Paths
from rebinding.study import tracing
from rebinding.study.bench import Bench
from rebinding.study.case import Case
from rebinding.study.checks import aligned_pairs, gates_of
from rebinding.study.use import Use
from rebinding.verdicts import require
from rebinding.world.designs import Design


@dataclass(frozen=True, eq=False)
class Questions:
    """What was asked of a model so far."""

    _case: Case
    known: dict[Request, Evidence] = field(default_factory=dict)
    seconds: dict[Request, float] = field(default_factory=dict)
    """What each piece of evidence took to compute, or to read from the store."""
    stages: dict[str, Paths] = field(default_factory=dict)
    """What each stage of our own discovery asked for."""
    used: list[Use] = field(default_factory=list)
    """What was asked for since somebody emptied this."""

    def _bench(self, boxes: int) -> Bench:
        return self._case.wide_bench if boxes == tracing.WIDE else self._case.bench

    def _story(self, boxes: int) -> tuple[Bench, Design]:
        bench = self._bench(boxes)
        return bench, tracing.story(bench, self._case.settings.design, boxes)

    def _ask(self, bench: Bench, request: Request, *, circuit: str | None = None, ground: bool = True) -> Evidence:
        """Evidence that has passed its gates; the first that it fails is raised."""
        self.used.append(Use(request, circuit, ground))
        if request not in self.known:
            begin = perf_counter()
            if isinstance(request, OnPrompts):
                require(aligned_pairs(bench, request.prompts))
            found = self._measured(bench, request)
            self.seconds[request] = perf_counter() - begin
            for gate in gates_of(request, found):
                require(gate)
            self.known[request] = found
        return self.known[request]

    def _measured(self, bench: Bench, request: Request) -> Evidence:
        self._case.begins(request.KIND.name)
        return bench.measured(request)
