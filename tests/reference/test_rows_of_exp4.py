"""What a published row of section 5 asks for is the pack's experiment: from a study's request to the printed table.

`test_exp4` runs the experiment with its own arguments. Here they come from a study's request, which takes answer
tokens, directions, conditions and read-outs as the procedure `published` says; prompts and heads are the pack's.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.binding.conditions import PRINTED_ROW
from rebinding.experiments.binding.request import request_shifts
from rebinding.experiments.binding.summary import examples
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import builtin_procedure
from tests.reference.bench import choose_form, make_bench
from tests.reference.pack import Pack
from tests.reference.test_exp4 import CONDITIONS, direction_designs, read_heads, record

ROWS = {
    "q": "box,object/shared_keys/query_shift",
    "k_both": "box,object/shared_keys/source_swap",
    "k_box": "box/shared_keys/source_swap",
    "k_object": "object/shared_keys/source_swap",
    "qk": "box,object/shared_keys/both_restore",
    "random_q": "box,object/shared_keys/random_query_shift",
    "random_k": "box,object/shared_keys/random_source_swap",
    "random_qk": "box,object/shared_keys/random_both",
}
"""The rows of the printed table, and the pack's entries."""


@cache
def measured(pack: Pack) -> tuple[Evidence, str]:
    """The published request on the pack's prompts, heads and pair of slots; and the pack's form of its answers."""
    entry, means = (pack.entries[f"qk_intervention/{name}"] for name in (ROWS["q"], "box,object/directions"))
    settings, conventions = entry["settings"], builtin_procedure("published").binding
    evaluation = settings["evaluation"].removeprefix("design ")
    slots = {("slot", str(slot)): ((design,), means["ids"]) for slot, design in enumerate(direction_designs(pack))}
    bench = make_bench(pack, {(): ((evaluation,), entry["ids"]), **slots})
    circuit = Circuit(tuple(CircuitHead("B", layer, head, "readout") for layer, head in read_heads(entry)))
    counts = {"n": len(entry["ids"]), "directions": len(means["ids"]), "draws": 1}
    request = request_shifts(bench.prompts, circuit, "published", "published", conventions, **counts)
    request = replace(request, slots=((settings["i"], settings["j"]),))  # the paper's pair, or another naming order's
    return bench.get(request), choose_form(pack, bench, evaluation, request.answers)


def test_every_row_of_the_table_is_compared(pack: Pack) -> None:
    """What the text says otherwise than the released code is run besides, and no pack has it."""
    conditions = set(measured(pack)[0].settings["conditions"]) - set(PRINTED_ROW)
    assert conditions == set(ROWS) >= {condition.name for condition in CONDITIONS.values()}


@pytest.mark.parametrize("row", ROWS)
def test_the_printed_table_is_the_packs(pack: Pack, row: str, deviations: dict[str, float]) -> None:
    expected = pack.entries[f"qk_intervention/{ROWS[row]}"]["value"]
    evidence, form = measured(pack)
    table = examples(evidence)
    actual = table[table["condition"] == row][["dR", "dlogit", "switch"]].mean()
    record(deviations, actual["dR"], expected["dR"])
    record(deviations, actual["dlogit"], expected["dlogit"][form])
    assert actual["switch"] == pytest.approx(expected["switch"], abs=1e-9)  # both are counts over the same number
