"""A small run on a planted model with every kind of shard, for tests that damage, kill and finish it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torch import Tensor, equal

from rebinding.evidence import Evidence, Request
from rebinding.evidence.store import Store
from rebinding.experiments.binding.request import Shifts, request_shifts
from rebinding.experiments.paths.request import STAGE_BY_NAME, conventions_of_plant, request_paths
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.roles.summary import of_group
from rebinding.experiments.unedited import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build, parse
from rebinding.study.plants import declared
from rebinding.verdicts import Verdict, effect

NAME = "planted:pointer"


@dataclass(frozen=True)
class RunOutput:
    """What a run comes to."""

    evidence: Mapping[str, Evidence]
    tensors: Mapping[str, Tensor]
    plant: Mapping[str, float]
    verdict: Verdict

    def equals(self, expected: RunOutput) -> bool:
        """To the bit: what is computed again is the very same computation, and what is read was written by one."""
        if (self.evidence.keys(), self.plant, self.verdict) != (
            expected.evidence.keys(),
            expected.plant,
            expected.verdict,
        ):
            return False
        pairs = [(self.evidence[name], expected.evidence[name]) for name in self.evidence]
        tensors = [(self.tensors[name], expected.tensors[name]) for name in self.tensors]
        return all(a.settings == b.settings and a.rows.equals(b.rows) for a, b in pairs) and all(
            equal(a, b) for a, b in tensors
        )


@cache
def loaded_model() -> LoadedModel:
    """The model, loaded once."""
    return load(NAME)


@cache
def plan() -> tuple[Workbench, tuple[*tuple[Request, ...], Shifts]]:
    """A bench that keeps nothing, and what is asked of it."""
    bench = Workbench(loaded_model())
    prompts, heads, ways = bench.prompts, Circuit(build("pointer").circuit), builtin_procedure("published")
    design, conventions = prompts.design("published"), conventions_of_plant(ways.circuit, "published")
    pairs = draw_noise_pairs(prompts, conventions, 2)
    return bench, (
        request_interchange(prompts, heads, design, "pointer", 4, ways.roles),
        request_ability(prompts, design, 4),
        request_paths(pairs, STAGE_BY_NAME["B"], heads.group("A"), conventions),
        request_shifts(prompts, heads, "published", "isolated", ways.binding, n=2, directions=2, draws=1),
    )


def run(root: Path) -> RunOutput:
    """Ask a new bench on the store there, which has nothing in memory but the prompts and the model."""
    settings, requests = plan()
    store = Store(root)
    bench = Workbench(loaded_model(), store, prompts=settings.prompts)
    bench.__dict__["surgeon"] = settings.surgeon
    evidence = {request.label: bench.get(request) for request in requests}
    tensors = bench.tensors(requests[-1].batches[0])
    plant = declared(parse("pointer"), store)
    changes = of_group(evidence[requests[0].label], "B", "pointed_object")
    return RunOutput(evidence, tensors, dict(plant.printed), effect(changes, margin=0.2))
