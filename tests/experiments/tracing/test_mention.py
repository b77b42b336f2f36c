"""The first mention of a box, patched beside the swap: which rows there are."""

from __future__ import annotations

from rebinding.experiments.tracing.mention import PATCHED, mention
from rebinding.experiments.tracing.modes import correct_ones, traced_pair
from rebinding.experiments.tracing.request import counterfactual
from tests.experiments.tracing.small_model import encoder, plan, surgeon

MODE = "context_target_box_and_swap_query_box"
ROLES = {"context": "context_partner", "swap": "swap_asked"}


def test_what_is_measured() -> None:
    """Every way of patching at every layer but the first, at which both labels together are the original run."""
    every = (traced_pair(encoder(), counterfactual(plan(), number, MODE), "exp1_spaced") for number in range(12))
    found = mention(surgeon(), correct_ones(surgeon(), every, 3), mode=MODE, **ROLES)
    rows = found.rows
    assert set(rows["patched"]) == set(PATCHED)
    assert sorted(set(rows["layer"])) == list(range(1, surgeon().anatomy.n_layers))
    assert len(rows) == 3 * len(PATCHED) * (surgeon().anatomy.n_layers - 1)
    assert (rows["moved"] > 0).all()
    assert (found.settings["mode"], found.settings["roles"]) == (MODE, list(ROLES.values()))
