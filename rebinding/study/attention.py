"""What the groups of a circuit look at."""

from __future__ import annotations

from rebinding.evidence import Evidence
from rebinding.experiments.attention.looks import Looks, look
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import ROLE_OF_GROUP, Group
from rebinding.paper.procedure import ProcedureName
from rebinding.study.bench import Bench, measures
from rebinding.world.designs import Design

ROLES = ("context_partner_object", "swap_asked")
"""Prompts in which a box is asked about that was swapped."""


def looked(bench: Bench, drawn: Design, circuit: Circuit, n: int, *, group: Group, like: ProcedureName) -> Looks:
    """A group, from the token where it stands; in stories that were asked for, or where no slot and no order of names
    is more frequent than another."""
    stories = bench.design("counterbalanced") if like == "controlled" else drawn
    return Looks(bench.draw_with(stories, bench.evaluation, n, ROLES), circuit.group(group), ROLE_OF_GROUP[group])


@measures(Looks)
def measure_looks(bench: Bench, asked: Looks) -> Evidence:
    prompts = bench.drawn(asked.prompts).prompts
    return look(bench.surgeon, prompts, asked.prompts.ids, asked.heads, asked.at)
