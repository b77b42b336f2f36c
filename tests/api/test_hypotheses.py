"""Three tests of a circuit: runs against plain hooks, the criterion by its matrices, the rules on made-up scores."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import rebinding
from rebinding import Circuit, Prompts, SurgeryError
from rebinding.api.hypotheses import _centred, _equivalence, _independence, _kernel, _minimality, hsic, hsic_p_value
from rebinding.verdicts.estimates import Array
from tests.api.small import changed_z, logits_of, model_of
from tests.families.models import tokens

TOLERANCE = 1e-5
"""Logits of a few units in float64 that pass through float32: some tens of units of 1.2e-7."""


def prompts_of(model: rebinding.Model, n: int = 8) -> Prompts:
    """Eight random prompts; the tokens `first` and `own` are one token in prompt 0 and two in the others."""
    answers = [[11 + number, 50, 51] for number in range(n)]
    positions: dict[str, int | list[int]] = {"first": 4, "own": [4, *range(5, 4 + n)]}
    return model.prompts(tokens("llama", n=n), positions=positions, answers=answers)


@pytest.mark.parametrize("at_roles", [True, False])
def test_circuit_complement_and_single_heads_equal_hooks(at_roles: bool) -> None:
    """The circuit has head 1.2 at two roles, which are one token in prompt 0, and head 3.0 at one; or both at every
    token. All other values of z are zero, or, for the complement, those of the circuit."""
    model = model_of()
    prompts, raw = prompts_of(model), model.loaded.model
    circuit = Circuit.of({"first": [(1, 2)], "own": [(1, 2), (3, 0)]}) if at_roles else [(1, 2), (3, 0)]
    active = torch.zeros(4, len(prompts), prompts.length, 6, dtype=torch.bool)  # (layer, prompt, token, head)
    for layer, head, roles in ((1, 2, ("first", "own")), (3, 0, ("own",))):
        for number in range(len(prompts)) if at_roles else ():
            for role in roles:
                active[layer, number, prompts.at(role)[number], head] = True
        if not at_roles:
            active[layer, :, :, head] = True

    def lead(kept: Tensor) -> Tensor:
        def ablate(z: Tensor, *, layer: int) -> Tensor:
            return torch.where(kept[layer][..., None], z, 0.0)

        with changed_z(raw, {layer: partial(ablate, layer=layer) for layer in range(4)}):
            of_answers = logits_of(raw, prompts.tokens).gather(1, prompts.candidates())
        return of_answers[:, 0] - of_answers[:, 1:].mean(1)

    rows = rebinding.check_circuit(model, circuit, prompts, ablation="zero", draws=2).rows
    scores = {str(name): torch.tensor(of["metric"].to_numpy()).double() for name, of in rows.groupby("circuit")}
    less = active.clone()
    less[3, :, :, 0] = False
    (name,) = [name for name in scores if name.startswith("less 3.0")]
    for kept, own in ((active, "circuit"), (~active, "complement"), (less, name)):
        assert torch.allclose(scores[own], lead(kept), atol=TOLERANCE), own
    assert not torch.allclose(scores["circuit"], scores["complement"], atol=100 * TOLERANCE)
    added = [name for name in scores if name.startswith("more 1.")]
    assert len(added) == (4 if at_roles else 2)
    assert not any(name.startswith("more 1.2") for name in added)


def test_the_criterion_is_the_trace_of_centred_kernels() -> None:
    """By its definition with matrices: trace(K H L H) / (n - 1)^2, kernels as wide as the median distance."""
    first, second = np.array([0.0, 1.0, 3.0]), np.array([2.0, 2.0, 4.0])

    def kernel(sample: Array, width: float) -> Array:
        distances: Array = (sample[:, None] - sample) ** 2
        return np.exp(-distances / (2 * width**2))

    center = np.eye(3) - 1 / 3
    expected = np.trace(kernel(first, 2.0) @ center @ kernel(second, 2.0) @ center) / 4
    assert expected > 0.01
    assert hsic(_centred(_kernel(first)), _kernel(second)) == pytest.approx(expected)


def test_independence_is_refuted_shown_or_open() -> None:
    """A quadratic dependence has no correlation: the permutation test sees it. No dependence at N = 400 is within the
    bound, at N = 20 it is open, with the N that would decide. A constant score depends on nothing."""
    generator = np.random.default_rng(0)
    model = generator.normal(size=400)
    other = generator.normal(size=400)
    assert abs(np.corrcoef(other, model)[0, 1]) < 0.1
    assert _independence(model**2, model).outcome == "NOT REPLICATED"
    assert _independence(other, model).outcome == "REPLICATED"
    few = _independence(other[:20], model[:20])
    assert few.outcome == "INCONCLUSIVE"
    assert few.needed_n is not None
    assert few.needed_n > 20
    assert _independence(np.ones(20), model[:20]).outcome == "REPLICATED"
    assert _independence(other[:20], np.ones(20)).gate == "scores_vary"
    assert hsic_p_value(np.ones(20), model[:20]) == 1.0
    assert hsic_p_value(model[:20], model[:20]) == pytest.approx(1 / 1001)


def test_equivalence_is_a_share_about_one_half() -> None:
    """Better on every second of 400 prompts, on every one, on 3 of 4 of 8, and equal everywhere."""
    model = np.zeros(400)
    assert _equivalence(np.tile([1.0, -1.0], 200), model).outcome == "REPLICATED"
    assert _equivalence(np.ones(400), model).outcome == "NOT REPLICATED"
    assert _equivalence(np.array([1.0, 1.0, 1.0, -1.0] * 2), np.zeros(8)).outcome == "INCONCLUSIVE"
    same = _equivalence(model, model)
    assert (same.outcome, same.measured, same.margin) == ("REPLICATED", 0.5, 0.1)


def test_minimality_needs_every_head_to_count_more_than_an_added_one() -> None:
    generator = np.random.default_rng(0)
    scores = {"circuit": np.full(40, 5.0), "less a": 2 + generator.normal(size=40), "less b": np.full(40, 5.0)}
    scores |= {f"more {name}": 5 + 0.1 * generator.normal(size=40) for name in "pqrstu"}
    added = {"a": list("pqrstu")}
    assert _minimality(scores, added).outcome == "REPLICATED"
    against = {**scores, "less c": scores["circuit"] + 3}
    assert _minimality(against, {**added, "c": list("pqrstu")}).outcome == "REPLICATED", (
        "a head against the answer counts"
    )
    idle = _minimality(scores, {**added, "b": list("pqrstu")})
    assert (idle.outcome, idle.part) == ("NOT REPLICATED", ("b",))


def test_too_few_prompts_draws_and_heads_are_refused() -> None:
    model = model_of()
    prompts = prompts_of(model)
    with pytest.raises(SurgeryError, match="7 prompts and 10 draws: the tests need 8 prompts"):
        rebinding.check_circuit(model, [(1, 2)], prompts[:7])
    with pytest.raises(SurgeryError, match="8 prompts and 1 draws"):
        rebinding.check_circuit(model, [(1, 2)], prompts, draws=1)
    with pytest.raises(SurgeryError, match="1 of them are outside the circuit; 2 are needed"):
        rebinding.check_circuit(model, [(1, head) for head in range(5)], prompts)
