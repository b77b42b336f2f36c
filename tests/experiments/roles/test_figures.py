"""The bars of section 4.2."""

from __future__ import annotations

import pytest

from rebinding.experiments.roles.figures import role_bars
from rebinding.experiments.roles.summary import group_effects
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
