"""The first mention of a box, patched beside the swap: equal to hooked forward passes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch

from rebinding.evidence import Evidence
from rebinding.evidence.store import Store
from rebinding.experiments.tokens import token_batch
from rebinding.experiments.tracing.mention import PATCHED, mention
from rebinding.experiments.tracing.modes import Pool
from tests.close import allowance
from tests.surgery.models import Family
from tests.tracing.naive import final_logits, patched, residuals
from tests.tracing.small import encoder, model, plan, surgeon

MODE = "context_target_box_and_swap_query_box"
ROLES = {"context": "context_partner", "swap": "swap_asked"}
TOGETHER = {"swap": ["swap"], "both": ["context", "swap"]}


def pool(n: int = 3) -> Pool:
    return Pool(plan(), MODE, n, rule="exp1_spaced")


@cache
def found(family: Family = "llama") -> Evidence:
    return mention(surgeon(family), encoder(), pool(), **ROLES, progress=False)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_equals_hooked_forward_passes(family: Family) -> None:
    rows = found(family).rows
    pair = pool().pairs(surgeon(family), encoder())[1]
    here = rows[rows["prompt"] == pair.id]
    original, other = (token_batch([side]) for side in (pair.original, pair.counterfactual))
    given, base = residuals(model(family), original), final_logits(model(family), other)
    tokens, rounding = list(pair.candidates), 2 * allowance(base)  # a margin is a difference of two logits
    changes = []
    for row in here.itertuples():
        at = [pair.original.roles[ROLES[name]] for name in TOGETHER[str(row.patched)]]
        logits = patched(model(family), other, [(row.layer, token, given[row.layer][:, token]) for token in at])[0]
        assert row.margin == pytest.approx(margin(logits[tokens], pair.answer), abs=rounding)
        assert row.base_margin == pytest.approx(margin(base[0, tokens], pair.answer), abs=rounding)
        assert row.counterfactual_margin == pytest.approx(
            float(logits[tokens[pair.answer]] - logits[pair.rival]), abs=rounding
        )
        changes.append(abs(row.margin - row.base_margin))
    assert max(changes) > 100 * rounding, "nothing moves, so equality says nothing"


def margin(logits: torch.Tensor, answer: int) -> float:
    others = [float(one) for place, one in enumerate(logits) if place != answer]
    return float(logits[answer]) - max(others)


def test_what_is_measured() -> None:
    """Every way of patching at every layer but the first, at which both labels together are the original run."""
    rows = found().rows
    assert set(rows["patched"]) == set(PATCHED)
    assert sorted(set(rows["layer"])) == list(range(1, surgeon().anatomy.n_layers))
    assert len(rows) == 3 * len(PATCHED) * (surgeon().anatomy.n_layers - 1)
    assert (rows["moved"] > 0).all()
    assert found().settings["answer_rule"] == "exp1_spaced"


def test_it_resumes(tmp_path: Path) -> None:
    shelf = Store(tmp_path).shelf(subject="s", dtype="float32")
    again = [mention(surgeon(), encoder(), pool(2), **ROLES, block=1, shelf=shelf, progress=False) for _ in range(2)]
    assert [entry.experiment for entry in Store(tmp_path).entries()] == ["first-mention"] * 2
    assert again[0].rows.equals(again[1].rows)
