"""What is asked about a circuit that is taken out of the model, all else left as it is."""

from __future__ import annotations

from dataclasses import replace

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.ablation import full_model
from rebinding.experiments.circuit.knockout import knock_out
from rebinding.experiments.circuit.random_circuits import draw_circuits, heads_to_spare
from rebinding.experiments.circuit.request import Knockout
from rebinding.paper.circuit import Circuit
from rebinding.study.bench import Bench, measures
from rebinding.study.circuit import DRAWS, Ablated, by_variant, listed, means_of, roles_of
from rebinding.verdicts import Gate, requirement
from rebinding.world.designs import Design


def knocked_out(bench: Bench, drawn: Design, circuit: Circuit, n: int) -> Knockout:
    """A circuit, and random sets of other heads with as many at each role in each layer; in stories, and at means, in
    which no slot and no order of names is more frequent than another (as many boxes and swaps as in those of the run).
    """
    even = bench.design("counterbalanced", boxes=drawn.boxes, operations=drawn.operations, verb=drawn.verb)
    prompts = bench.draw_with(even, bench.evaluation, n, roles_of(circuit))
    return Knockout(prompts, means_of(bench, even, "counterbalanced"), circuit.heads, DRAWS)


def others_left(circuit: Circuit, layers: int, all_heads: int) -> Gate:
    """Whether there are other heads to compare with."""
    enough = heads_to_spare(circuit, layers, all_heads // layers)
    told = f"a layer of {all_heads // layers} heads has too few beside the circuit's for random sets of as many"
    return requirement("heads_to_spare", enough, told)


@measures(Knockout)
def measure_knockout(bench: Bench, asked: Knockout) -> Evidence:
    prompts, ids, circuit = bench.drawn(asked.prompts).prompts, asked.prompts.ids, Circuit(asked.circuit)
    answers, anatomy = bench.answers(prompts), bench.surgeon.anatomy
    drawn = draw_circuits(
        circuit, anatomy.n_layers, anatomy.n_heads, draws=asked.draws, match="role_and_layer", exclude=True
    )
    variants = [Ablated("circuit"), *(Ablated("random", draw=number) for number in range(asked.draws))]
    named = {str(number): one for number, one in enumerate((circuit, *drawn))}
    found = knock_out(bench.surgeon, prompts, answers, ids, named, listed(bench, asked.means))
    whole = full_model(bench.surgeon, prompts, answers, ids)
    return by_variant(asked.KIND, variants, replace(whole, rows=whole.rows.assign(moved=0.0)), found)
