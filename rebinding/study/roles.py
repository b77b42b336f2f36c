"""The attention interchange of section 4.2."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rebinding.evidence import Evidence
from rebinding.experiments.roles.interchange import MODES, RolePair, run_roles
from rebinding.experiments.roles.request import Counterfactual, Interchange
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import RolesWay
from rebinding.study.bench import Bench, measures
from rebinding.world.designs import Design, DesignName


def candidates(way: RolesWay) -> tuple[RolesWay, ...]:
    """The conventions that a printed number may have been measured under: those given, and perhaps the text's own."""
    told = replace(way, places="paper", direction="text", pointer="structure")
    return (way,) if way.printed == "as_run" or way == told else (way, told)


def stories(bench: Bench, way: RolesWay, asked: DesignName) -> Design:
    """The stories of a procedure; `asked` is the design that a run was asked for, in place of the published one."""
    name = asked if way.design == "published" else way.design
    held_out = name == "counterbalanced" and way.ids == "held_out"
    return bench.design(name, split="evaluation" if held_out else None)


def interchanged(
    bench: Bench, circuit: Circuit, drawn: Design, counterfactual: Counterfactual, n: int, way: RolesWay, cut: int = 0
) -> Interchange:
    """Every group of a circuit gets the attention of a counterfactual, in prompts that many tokens short."""
    groups = tuple((group, circuit.group(group)) for group in MODES[way.places] if circuit.group(group))
    first = bench.evaluation if way.ids == "held_out" else bench.first
    alone = counterfactual == "pointer" and way.pointer == "structure"
    pairing = ("structure_only_pointer" if alone else counterfactual, way.direction)
    pairs = bench.draw(drawn, range(first, first + n), pairing, cut=cut)
    return Interchange(pairs, counterfactual, way.places, way.future, way.answers, groups)


@measures(Interchange)
def measure_interchange(bench: Bench, asked: Interchange) -> Evidence:
    pairs = [RolePair(number, own, other) for number, own, other in bench.drawn(asked.prompts).pairs]
    return run_roles(
        bench.surgeon,
        pairs,
        dict(asked.groups),
        kind=asked.counterfactual,
        token=partial(bench.encoder.answer_token, rule=asked.answers),
        mode=asked.mode,
        future=asked.future,
        single_heads=False,
    )
