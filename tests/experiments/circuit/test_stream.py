"""Exchange of the residual stream at a token of the context: no-ops, and the request."""

from __future__ import annotations

from typing import Any

from rebinding.experiments.circuit.measure import exchange_stream
from rebinding.experiments.circuit.request import request_stream
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tokens import token_batch
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.circuit.test_ablation import ANSWERS, CIRCUIT, IDS, setting
from tests.experiments.circuit.test_paths import ROLES, fake_prompts

WITHOUT_E = CIRCUIT.without(CIRCUIT.groups["E"])
TOKEN, LAYERS = "context_partner", (1, 2)
MOVED_ROLES = ROLES | {TOKEN: 2}
"""In the noise the word stands at another token."""


def exchanged(surgeon: Any, prompts: list, noise: list, means: list, layers: tuple[int, ...] = LAYERS) -> Any:
    options = {"role": TOKEN, "layers": layers, "block": 2}
    return exchange_stream(surgeon, prompts, noise, ANSWERS, IDS, WITHOUT_E, means, **options).rows


def test_own_stream_changes_nothing() -> None:
    surgeon, prompts, means = setting("llama")
    rows = exchanged(surgeon, prompts, prompts, means)
    assert (rows["relative_change"] <= allowance(rows["relative_change"], floor=1.0)).all()
    assert (rows["before"] - rows["after"]).abs().max() <= allowance(rows["before"], floor=1.0)


def test_stream_before_the_first_layer_is_the_word() -> None:
    """Noise that has the same words there says nothing new, wherever it stands and whatever is around it."""
    surgeon, prompts, means = setting("llama")
    noise = fake_prompts(token_batch(prompts).roll(-2, dims=1), MOVED_ROLES)  # the word at 4 stands at 2
    first, second = (exchanged(surgeon, prompts, noise, means, layers) for layers in ((0,), (1,)))
    assert (first["relative_change"] <= allowance(first["relative_change"], floor=1.0)).all()
    assert (second["relative_change"] > MIN_CHANGE_SHARE * allowance(second["relative_change"], floor=1.0)).all()


def test_the_request_has_the_circuit_without_e() -> None:
    """Its heads of E are held like all others, and the stream is another at E's token in front of the layers of D."""
    heads = Circuit(build("pointer").circuit)
    prompts = Stories(load("planted:pointer").encoder())
    request = request_stream(
        prompts, prompts.design("published"), heads, 2, conventions=builtin_procedure("controlled").circuit
    )
    assert set(request.circuit) == {head for head in heads.heads if head.group != "E"} != set(heads.heads)
    assert request.layers == tuple(sorted({layer for layer, _ in heads.group("D")}))
    encoded = prompts.encode(request.prompts)
    clean, noise = encoded.prompts[0], encoded.counterfactuals[0]
    at, noise_at = clean.roles[request.role], noise.roles[request.role]
    assert clean.ids[at] == noise.ids[noise_at]
    assert at != noise_at
