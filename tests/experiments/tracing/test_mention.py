"""The first mention of a box, patched together with the swap: the rows of the evidence."""

from __future__ import annotations

from rebinding.experiments.tracing.maps import correct_ones, traced_pair
from rebinding.experiments.tracing.measure import mention
from rebinding.experiments.tracing.request import PATCHED, counterfactual
from tests.experiments.tracing.small_model import encoder, plan, surgeon

MODE = "context_target_box_and_swap_query_box"
ROLES = {"context": "context_partner", "swap": "swap_asked"}


def test_rows() -> None:
    """Every entry of `PATCHED` at every layer but the first, where a patch of both labels is the original run."""
    pairs = (traced_pair(encoder(), counterfactual(plan(), number, MODE), "exp1_spaced") for number in range(12))
    evidence = mention(surgeon(), correct_ones(surgeon(), pairs, 3), mode=MODE, **ROLES)
    rows = evidence.rows
    assert set(rows["patched"]) == set(PATCHED)
    assert sorted(set(rows["layer"])) == list(range(1, surgeon().anatomy.n_layers))
    assert len(rows) == 3 * len(PATCHED) * (surgeon().anatomy.n_layers - 1)
    assert (rows["relative_change"] > 0).all()
    assert (evidence.settings["mode"], evidence.settings["roles"]) == (MODE, list(ROLES.values()))
