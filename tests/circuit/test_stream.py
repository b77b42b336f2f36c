"""Another residual stream at a token of the context: against hooks on full forwards, and at its ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.experiments.circuit.stream import exchange_stream
from rebinding.experiments.tokens import token_batch
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import given
from rebinding.planted import build
from rebinding.study.bench import Bench
from rebinding.study.stream import carried_on
from rebinding.subjects import load
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.circuit.naive import hooked
from tests.circuit.test_circuits import ANSWERS, IDS, SOME, setting
from tests.circuit.test_paths import ROLES, fake_prompts
from tests.close import FELT, allowance
from tests.surgery.models import FAMILIES, Family, tiny, tokens

BARE = SOME.without(SOME.groups["E"])
WHERE, LAYERS = "context_partner", (1, 2)
ELSEWHERE = ROLES | {WHERE: 2}
"""In the noise the word stands at another token."""


def noise_of(family: Family) -> list:
    return fake_prompts(tokens(family, n=5), ELSEWHERE)[2:]


def exchanged(surgeon: Any, prompts: list, noise: list, means: list, layers: tuple[int, ...] = LAYERS) -> Any:
    told = {"role": WHERE, "layers": layers, "block": 2}
    return exchange_stream(surgeon, prompts, noise, ANSWERS, IDS, BARE, means, **told).rows


def by_hooks(family: Family) -> torch.Tensor:
    """The answer's margin before and after (2, prompt): one prompt at a time, every z and residual set by hand."""
    surgeon, prompts, means = setting(family)
    anatomy, model = surgeon.anatomy, tiny(family)
    layers = list(anatomy.layer_modules(model))

    def held(one: Any) -> list:
        def ablate(layer: int) -> Any:
            def replace(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
                z = means[layer].transpose(0, 1).flatten(1)[None].to(args[0].dtype).clone()  # (1, token, head x dim)
                for head in (head for head in BARE.heads if head.layer == layer):
                    span = slice(head.head * anatomy.head_dim, (head.head + 1) * anatomy.head_dim)
                    z[0, one.roles[head.role], span] = args[0][0, one.roles[head.role], span]
                return (z,)

            return replace

        return [(layer.self_attn.o_proj, "in", ablate(at)) for at, layer in enumerate(layers)]

    def run(one: Any, hooks: list) -> Any:
        with hooked(hooks), torch.no_grad():
            return model(torch.tensor([one.ids]), use_cache=False, output_hidden_states=True)

    def put(at: int, value: torch.Tensor) -> Any:
        def replace(module: Any, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            stream = args[0].clone()
            stream[0, at] = value
            return (stream, *args[1:])

        return replace

    def margin(logits: torch.Tensor, place: int) -> torch.Tensor:
        best = logits[ANSWERS.tokens[place]].amax(-1)  # (candidate,)
        right = int(ANSWERS.right[place])
        return best[right] - torch.cat([best[:right], best[right + 1 :]]).max()

    found = []
    for place, (one, other) in enumerate(zip(prompts, noise_of(family), strict=True)):
        streams = run(other, held(other)).hidden_states  # what stands in front of each layer
        edits = [(layers[at], "in", put(one.roles[WHERE], streams[at][0, other.roles[WHERE]])) for at in LAYERS]
        runs = (run(one, [*held(one), *more]) for more in ([], edits))
        found.append(torch.stack([margin(out.logits[0, one.roles["readout"]], place) for out in runs]))
    return torch.stack(found, dim=1)


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_hooks_on_full_forwards(family: Family) -> None:
    """On both surgeons; and where no window hides the token, on some prompt it is felt."""
    surgeon, prompts, means = setting(family)
    want = by_hooks(family)
    close = allowance(want, least=1.0)
    for one in (surgeon, NNsightSurgeon(surgeon.model, surgeon.anatomy)):
        rows = exchanged(one, prompts, noise_of(family), means)
        got = torch.tensor(rows[["before", "after"]].to_numpy().T.copy())
        assert float((got - want).abs().max()) <= close
        assert (rows["moved"] > 0).all()
    if all(window is None for window in surgeon.anatomy.windows):
        assert float((want[0] - want[1]).abs().max()) > FELT * close


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
    bench = Bench(load("planted:pointer"))
    asked = carried_on(bench, bench.design("published"), heads, 2, way=given("controlled").circuit)
    assert set(asked.circuit) == {one for one in heads.heads if one.group != "E"} != set(heads.heads)
    assert asked.layers == tuple(sorted({layer for layer, _ in heads.group("D")}))
    own, other = (one[0] for one in (bench.drawn(asked.prompts).prompts, bench.drawn(asked.prompts).others))
    at, there = own.roles[asked.role], other.roles[asked.role]
    assert own.ids[at] == other.ids[there]
    assert at != there
