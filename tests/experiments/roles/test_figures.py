"""The bars of section 4.2."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rebinding.experiments.roles.request import SINGLE_HEADS
from rebinding.experiments.roles.summary import group_effects
from rebinding.report.figures.roles import _bars, role_bars
from rebinding.report.folder import ReportedModel
from tests.experiments.binding.setup import random_model
from tests.experiments.roles.test_roles import run


def test_bars_are_the_means_of_each_group() -> None:
    """Hatched: the content control's new object; filled: the pointed one."""
    control, pointer = (run(random_model("llama"), kind, single_heads=False) for kind in ("content_control", "pointer"))
    first, axes = role_bars({"one": (control, pointer), "other": (control, pointer)}).axes
    assert [first.get_title(loc="left"), axes.get_title(loc="left")] == ["one", "other"]
    bars = [container for container in axes.containers if hasattr(container, "patches")]
    for container, word, evidence in zip(bars, ("new_object", "pointed_object"), (control, pointer), strict=True):
        means = group_effects(evidence).groupby("group")[word].mean()
        assert [bar.get_height() for bar in container.patches] == pytest.approx(means.tolist(), abs=1e-6)
        assert bool(container.patches[0].get_hatch()) == (word == "new_object")


def test_evidence_of_single_heads_has_no_bars() -> None:
    """It has some of the groups, and more rows than the whole groups have."""
    facets = {"mode": "published", "direction": "code", "design": "published", "cut": None}
    whole = [
        (run(random_model("llama"), kind, single_heads=False), kind, {}) for kind in ("content_control", "pointer")
    ]
    single = (run(random_model("llama"), "pointer", n=3), "pointer", {"patched": SINGLE_HEADS})
    pieces = {
        str(number): replace(piece, settings=piece.settings | {"facets": {**facets, **more, "pairs": pairs}})
        for number, (piece, pairs, more) in enumerate([*whole, single])
    }
    model = ReportedModel(1, {"name": "made up"}, Path())
    model.__dict__["evidence"] = pieces  # a cached property
    bars = _bars(model, facets)
    assert bars is not None
    assert bars[1] is pieces["1"]
    assert len(pieces["2"].rows) > len(pieces["1"].rows)
