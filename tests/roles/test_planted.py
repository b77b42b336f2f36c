"""Attention interchange on models whose mechanism is known."""

from __future__ import annotations

from functools import cache

import pandas as pd
import pytest

from rebinding.experiments.roles.interchange import Mode, RolePair, run_roles
from rebinding.experiments.roles.summary import group_effects
from rebinding.world.designs import DesignName, design
from tests.binding.setup import planted

ARCHITECTURES = ("llama", "gemma2", "gemma3")
MOVED, STILL = 2.0, 0.3
"""Logits. The planted answer is some ten logits ahead of the others."""


@cache
def bars(architecture: str, kind: str, mode: Mode, name: DesignName = "published") -> pd.DataFrame:
    """Mean change of every word's logit, by group."""
    bench, chosen = planted("pointer", architecture), design(name)
    pairs = [getattr(chosen, kind)(number) for number in range(4)]
    sides = [bench.encoder.encode(getattr(pair, side) for pair in pairs) for side in ("original", "counterfactual")]
    given = [RolePair(number, *pair) for number, pair in enumerate(zip(*sides, strict=True))]
    evidence = run_roles(
        bench.surgeon, given, bench.groups, kind=kind, token=bench.encoder.answer_token, mode=mode, single_heads=False
    )
    return group_effects(evidence).drop(columns="prompt").groupby("group").mean()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("mode", ["paper", "published", "own_role"])
def test_b_moves_the_pointer_and_not_the_content(architecture: str, mode: Mode) -> None:
    """B's attention brings the object at the counterfactual's place up and the answer down; new objects never come."""
    pointer, control = bars(architecture, "pointer", mode), bars(architecture, "content_control", mode)
    assert pointer.loc["B", "pointed_object"] > MOVED
    assert pointer.loc["B", "answer"] < -MOVED
    assert abs(control.loc["B", "new_object"]) < STILL
    assert abs(pointer.loc["B", "new_object"]) < STILL


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_by_its_outputs_carries_content_and_by_its_patterns_an_address(architecture: str) -> None:
    """The published mixture of sites makes A look unlike B; with patterns for both it addresses as B does."""
    outputs, patterns = (bars(architecture, "content_control", mode).loc["A"] for mode in ("published", "own_role"))
    assert outputs["new_object"] > MOVED
    assert abs(patterns["new_object"]) < STILL
    assert bars(architecture, "pointer", "published").loc["A", "pointed_object"] < STILL
    assert bars(architecture, "pointer", "own_role").loc["A", "pointed_object"] > MOVED


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_groups_act_at_their_own_tokens(architecture: str) -> None:
    """C points from the question box, and does nothing at the readout, where the paper patches every group."""
    assert bars(architecture, "pointer", "published").loc["C", "pointed_object"] > MOVED
    assert abs(bars(architecture, "pointer", "paper").loc["C", "pointed_object"]) < STILL


@pytest.mark.parametrize("name", ["partner_second", "counterbalanced"])
@pytest.mark.parametrize("kind", ["pointer", "structure_only_pointer"])
def test_the_pointer_does_not_need_new_objects_or_wording(name: DesignName, kind: str) -> None:
    """A counterfactual that only exchanges two statements moves B as the published one does, in other designs too."""
    assert bars("llama", kind, "own_role", name).loc["B", "pointed_object"] > MOVED
