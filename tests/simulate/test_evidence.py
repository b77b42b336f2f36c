"""Simulated evidence has the columns, the types and the units of what the experiments themselves produce."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import pandas as pd
import pytest

from claims.catalogue import claim
from rebinding.evidence import Evidence, Request
from rebinding.experiments.attention import AttentionToRoles, request_attention
from rebinding.experiments.circuit.request import request_contributions
from rebinding.experiments.paths.request import Paths
from rebinding.experiments.roles.request import request_random_interchange
from rebinding.paper.numbers import checkpoint, circuit
from rebinding.simulate.source import SIMULATORS, simulator_of
from rebinding.simulate.worlds import Run, world
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study

pytestmark = pytest.mark.slow

K_REDIRECTS = claim("binding.k_redirects")
E_PRIME = claim("circuit.e_prime")
MAXIMUM = claim("circuit.recovers_most")
IS_POINTER = claim("roles.b_is_the_pointer")
N = 6
A_ATTENDS = claim("circuit.a_attends_to_object")
REFERENCE = claim("tracing.reference_box_not_from_context")
WITHOUT_KEYS = ("replays", "floors")
OF_THE_MODEL = ("tracing", "first-mention", "readout-diagnostic", "attention")
"""Evidence whose rows depend on the model's own layers, windows or heads, of which a plant has others."""
KEYS = ("prompt", "answer_slot", "i", "j", "condition", "draw", "variant", "word", "group", "layer", "head", "order")
"""Columns that tell rows apart; everything else was measured."""
NAMES = ("mode", "token", "place", "role", "patched", "question")
"""The same of evidence that depends on the model's own layers or heads."""


@pytest.fixture(scope="module")
def case() -> ModelUnderTest:
    model = parse_model("planted:pointer@llama")
    return ModelUnderTest(model, Settings((model,), samples=N, device="cpu"))


@pytest.fixture(scope="module")
def measured(case: ModelUnderTest) -> dict[Request, Evidence]:
    """What a plant gives to the questions of a few rows, by question."""
    study = Study.of(case)
    list(study.gates(IS_POINTER))
    for pairs in ("pointer", "content_control"):
        study.roles(IS_POINTER, pairs)
    study.ask(IS_POINTER, partial(request_random_interchange, group="B", conventions=study.procedure(IS_POINTER).roles))
    study.binding(K_REDIRECTS)
    study.ablate_circuit(MAXIMUM)
    study.links(claim("circuit.chain.B_q_A"), "B")
    study.prunings(MAXIMUM)
    study.patch_context_stream(E_PRIME)
    study.ask(E_PRIME, partial(request_contributions, conventions=study.conventions(E_PRIME)))
    study.ask(A_ATTENDS, partial(request_attention, group="A", like="published"))
    study.trace_residuals(REFERENCE, "target_box", "context_box", "context_partner_object", "swap_first", "readout")
    study.patch_mention(REFERENCE, "context_and_swap", "context_asked", "swap_asked")
    study.diagnose_readout(REFERENCE)
    return study.log.evidence


def test_every_kind_that_can_be_drawn_is_compared(measured: dict[Request, Evidence]) -> None:
    assert {request.KIND.name for request in measured} == set(SIMULATORS)


def test_rows_are_those_of_the_experiment(case: ModelUnderTest, measured: dict[Request, Evidence]) -> None:
    run = Run(world("paper", "gemma2-9b"), 0)
    for request, real in measured.items():
        rows, _ = simulator_of(type(request))(case.session.prompts, with_heads(request, case), run)
        kind = request.KIND
        simulated = kind.evidence(rows, {}).rows
        assert set(simulated.columns) == set(real.rows.columns), kind.name
        assert simulated[kind.unit].nunique() == real.rows[kind.unit].nunique() == request.n, kind.name
        keys = [name for name in KEYS if name in simulated and kind.name not in WITHOUT_KEYS]
        if kind.name in OF_THE_MODEL:
            keys = [name for name in (*keys, *NAMES) if name in simulated and name not in ("layer", "head")]
            assert set(keyed(simulated, keys)) == set(keyed(real.rows, keys)), kind.name
        else:
            assert keyed(simulated, keys) == keyed(real.rows, keys), kind.name
        for name in simulated:
            assert numeric(simulated[name].dtype.kind) == numeric(real.rows[name].dtype.kind), (kind.name, name)


def with_heads(request: Request, case: ModelUnderTest) -> Request:
    """All heads of this plant as senders, where a request leaves out which: a world knows those of its own model. Heads
    whose attention is asked for are published ones, because a world knows no others."""
    if isinstance(request, AttentionToRoles):
        heads = tuple((head.layer, head.head) for head in circuit("gemma2-9b") if head.group == "A")
        return replace(request, heads=heads)
    if not isinstance(request, Paths) or request.senders:
        return request
    anatomy = case.loaded_model.anatomy
    heads = tuple(product(range(anatomy.n_layers), range(anatomy.n_heads)))
    return replace(request, senders=heads)


def test_all_heads_of_the_model_send(case: ModelUnderTest, measured: dict[Request, Evidence]) -> None:
    request = next(request for request in measured if isinstance(request, Paths) and not request.senders)
    rows, _ = simulator_of(Paths)(case.session.prompts, request, Run(world("paper", "llama3.2-3b"), 0))
    shape = checkpoint("llama3.2-3b")
    assert len(set(zip(rows["layer"], rows["head"], strict=True))) == shape.layers * shape.heads
    assert (rows["layer"].max(), rows["head"].max()) == (shape.layers - 1, shape.heads - 1)


def keyed(rows: pd.DataFrame, keys: list[str]) -> list[tuple[object, ...]]:
    return sorted(zip(*(rows[name] for name in keys), strict=True)) if keys else []


def numeric(kind: str) -> bool:
    return kind in "iufb"
