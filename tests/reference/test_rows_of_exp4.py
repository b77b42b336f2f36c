"""What a published row of section 5 asks for is the pack's experiment: from prompt ids to the printed table.

`test_exp4` runs the experiment on the pack's own prompts. Here a study's request draws them, encodes them, takes answer
tokens, directions and read-outs as the procedure `published` says, and the numbers have to be the pack's as well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import examples
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.paper.procedure import given
from rebinding.study import binding
from rebinding.study.bench import Bench
from rebinding.subjects import load
from tests.reference.pack import Pack
from tests.reference.test_exp4 import CONDITIONS, heads_of, record

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
ANSWERS = "no_space"
"""The form of the answer that the published rule takes on the pack's tokenizer."""


@cache
def asked(pack: Pack) -> Evidence:
    """The published request, on as many prompts as the pack has."""
    name = next(iter(pack.starting("qk_intervention/box,object/directions")))
    heads = tuple(CircuitHead("B", layer, head, "readout") for layer, head in heads_of(pack.entries[name]))
    subject = load(str(pack.folder / "model"), dtype="float32", device="cpu")
    bench = Bench(replace(subject, form="template"))  # the pack's chat has no date
    n, directions = (len(pack.raw(f"qk_intervention/{what}")) for what in ("evaluation", "direction/slot0"))
    way = given("published").binding
    request = binding.shifted(bench, Circuit(heads), "published", "published", way, n=n, directions=directions, draws=1)
    own = [one.ids for one in bench.drawn(request.prompts).prompts]
    assert own == [one.ids for one in pack.prompts("qk_intervention/evaluation")]
    return bench.measured(request)


def test_every_row_of_the_table_is_compared(pack: Pack) -> None:
    assert set(asked(pack).settings["conditions"]) == set(ROWS) >= {one.name for one in CONDITIONS.values()}


@pytest.mark.parametrize("row", ROWS)
def test_the_printed_table_is_the_packs(pack: Pack, row: str, deviations: dict[str, float]) -> None:
    want = pack.entries[f"qk_intervention/{ROWS[row]}"]["value"]
    table = examples(asked(pack))
    mine = table[table["condition"] == row][["dR", "dlogit", "switch"]].mean()
    record(deviations, mine["dR"], want["dR"])
    record(deviations, mine["dlogit"], want["dlogit"][ANSWERS])
    assert mine["switch"] == pytest.approx(want["switch"], abs=1e-9)  # both are counts over the same number
