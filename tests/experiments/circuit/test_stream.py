"""Another residual stream at a token of the context: where it changes nothing, and what is asked for."""

from __future__ import annotations

from typing import Any

from rebinding.experiments.circuit.request import request_stream
from rebinding.experiments.circuit.stream import exchange_stream
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.tokens import token_batch
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import given
from rebinding.planted import build
from tests.close import FELT, allowance
from tests.experiments.circuit.test_ablation import ANSWERS, IDS, SOME, setting
from tests.experiments.circuit.test_paths import ROLES, fake_prompts

BARE = SOME.without(SOME.groups["E"])
WHERE, LAYERS = "context_partner", (1, 2)
ELSEWHERE = ROLES | {WHERE: 2}
"""In the noise the word stands at another token."""


def exchanged(surgeon: Any, prompts: list, noise: list, means: list, layers: tuple[int, ...] = LAYERS) -> Any:
    told = {"role": WHERE, "layers": layers, "block": 2}
    return exchange_stream(surgeon, prompts, noise, ANSWERS, IDS, BARE, means, **told).rows


def test_its_own_stream_changes_nothing() -> None:
    surgeon, prompts, means = setting("llama")
    rows = exchanged(surgeon, prompts, prompts, means)
    assert (rows["moved"] <= allowance(rows["moved"], least=1.0)).all()
    assert (rows["before"] - rows["after"]).abs().max() <= allowance(rows["before"], least=1.0)


def test_in_front_of_the_first_layer_the_stream_is_the_word() -> None:
    """Noise that has the same words there says nothing new, wherever it stands and whatever is around it."""
    surgeon, prompts, means = setting("llama")
    noise = fake_prompts(token_batch(prompts).roll(-2, dims=1), ELSEWHERE)  # the word at 4 stands at 2
    first, second = (exchanged(surgeon, prompts, noise, means, layers) for layers in ((0,), (1,)))
    assert (first["moved"] <= allowance(first["moved"], least=1.0)).all()
    assert (second["moved"] > FELT * allowance(second["moved"], least=1.0)).all()


def test_the_circuit_is_asked_about_without_e() -> None:
    """Its heads of E are held like all others, and the stream is another at E's token in front of the layers of D."""
    heads = Circuit(build("pointer").circuit)
    prompts = Prompts(load("planted:pointer").encoder())
    asked = request_stream(prompts, prompts.design("published"), heads, 2, conventions=given("controlled").circuit)
    assert set(asked.circuit) == {one for one in heads.heads if one.group != "E"} != set(heads.heads)
    assert asked.layers == tuple(sorted({layer for layer, _ in heads.group("D")}))
    encoded = prompts.drawn(asked.prompts)
    own, other = encoded.prompts[0], encoded.others[0]
    at, there = own.roles[asked.role], other.roles[asked.role]
    assert own.ids[at] == other.ids[there]
    assert at != there
