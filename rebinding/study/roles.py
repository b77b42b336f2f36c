"""The attention interchange of section 4.2."""

from __future__ import annotations

from rebinding.evidence import Evidence
from rebinding.experiments.roles.interchange import MODES, Mode, RolePair, run_roles
from rebinding.experiments.roles.request import Counterfactual, Interchange
from rebinding.paper.circuit import Circuit
from rebinding.study.bench import EVALUATION, Bench, measures
from rebinding.world.designs import Design


def interchanged(
    bench: Bench, circuit: Circuit, drawn: Design, counterfactual: Counterfactual, n: int, mode: Mode = "paper"
) -> Interchange:
    """Every group of a circuit gets the attention of a counterfactual."""
    groups = tuple((group, circuit.group(group)) for group in MODES[mode] if circuit.group(group))
    pairs = bench.draw(drawn, range(EVALUATION, EVALUATION + n), (counterfactual,))
    return Interchange(pairs, counterfactual, mode, groups)


@measures(Interchange)
def measure_interchange(bench: Bench, asked: Interchange) -> Evidence:
    pairs = [RolePair(number, own, other) for number, own, other in bench.drawn(asked.prompts).pairs]
    return run_roles(
        bench.surgeon,
        pairs,
        dict(asked.groups),
        kind=asked.counterfactual,
        token=bench.encoder.answer_token,
        mode=asked.mode,
        single_heads=False,
    )
