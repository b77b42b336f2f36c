"""A replay repeats all that a layer is called with; a layer that carries more than keys and values is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rebinding.models import check, errors, replays, verify
from rebinding.models.probe import Allowance, draw_tokens, watch_modules
from rebinding.models.replays import redraw_weights
from rebinding.models.verify import STAGES
from rebinding.surgery import Anatomy, Edit, Read, TorchSurgeon, derive, recorder
from rebinding.surgery.recording import layer_call
from tests.everyday import sampled
from tests.families.models import RandomModel, tiny, tokens
from tests.models.unusual_models import (
    KINDS,
    NO_STATE,
    ByKeyword,
    ByPlace,
    CountingLayer,
    GainedLayer,
    NamelessLayer,
    Plain,
    ScaledLayer,
    Scaling,
    Varying,
    peculiar,
    shuffled,
    stateful,
)

SWAPPED = [1, 0, 2, 3, 4, 5]
UNSUPPORTED, FAILED = errors.UnsupportedArchitecture, errors.FailedSelfCheck
REPEATED: dict[str, tuple[type[Plain], type[nn.Module]]] = {
    "keyword": (ByKeyword, GainedLayer),
    "a keyword each": (Varying, GainedLayer),
    "by place": (ByPlace, GainedLayer),
    "own scale": (Plain, ScaledLayer),
}


@pytest.mark.parametrize("case", REPEATED)
def test_layer_arguments_are_repeated(case: str) -> None:
    """An edit that is replayed does what it does to the model when a hook makes it in a run from the beginning."""
    model = peculiar(*REPEATED[case])
    surgeon = TorchSurgeon(model, check(model))
    prompt, edit = tokens("llama", 1), torch.randn(24, generator=torch.Generator().manual_seed(0))
    (actual,) = surgeon.run(surgeon.record(prompt), [Edit("resid", edit, at=[6], layer=1)], [Read("logits", at=[12])])
    assert torch.allclose(actual[:, 0], _from_the_beginning(model, prompt, edit), rtol=0, atol=1e-4)


def _from_the_beginning(model: PreTrainedModel, prompt: Tensor, edit: Tensor) -> Tensor:
    def set_value(module: nn.Module, args: tuple[Tensor, ...]) -> Any:
        changed = args[0].clone()
        changed[:, 6] = edit
        return (changed, *args[1:])

    handle = model.model.layers[1].register_forward_pre_hook(set_value)
    with torch.no_grad():
        logits: Tensor = model(input_ids=prompt, use_cache=False).logits[:, -1]
    handle.remove()
    return logits


def test_a_keyword_that_is_dropped_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(name: str, kwargs: dict[str, Any], anatomy: Anatomy) -> dict[str, Any]:
        return {key: value for key, value in layer_call(name, kwargs, anatomy).items() if key != "gain"}

    monkeypatch.setattr(recorder, "layer_call", forgetful)
    with pytest.raises(errors.FailedSelfCheck, match="run alone on its recorded input, is off"):
        check(peculiar(ByKeyword, GainedLayer))


@pytest.mark.parametrize("gain", [[0.4, SimpleNamespace()], torch.tensor([0.4]), object()])
def test_unrepeatable_layers_are_refused(gain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByKeyword, "gain", gain)
    with pytest.raises(errors.UnsupportedArchitecture, match=f"called with 'gain', a {type(gain).__name__}"):
        check(peculiar(ByKeyword, GainedLayer))


def test_a_residual_that_is_scaled_between_layers_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be by its replays, too. A layer that scales what it puts out has no known norms."""
    assert check(peculiar(Plain, ScaledLayer)).branches is None
    with pytest.raises(errors.UnsupportedArchitecture, match="the output of layer 0 is not the next layer's input"):
        check(peculiar(Scaling))
    monkeypatch.setattr(verify, "_check_chain", lambda *_: None)
    with pytest.raises(errors.FailedSelfCheck, match="from layer 0, token 31"):
        check(peculiar(Scaling))


NOT_A_SLICE = r"the q of layer 0 is not the slice of self_attn\.q_proj"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: peculiar(ByPlace, NamelessLayer), UNSUPPORTED, "called with 1 arguments without a name"),
        (lambda: peculiar(Plain, CountingLayer), FAILED, "with random weights and run from token 1 on, is off by"),
        (lambda: shuffled("llama", query_order=SWAPPED), UNSUPPORTED, NOT_A_SLICE),
        (lambda: shuffled("qwen3", query_order=SWAPPED), UNSUPPORTED, NOT_A_SLICE),
        (lambda: shuffled("llama", value_order=SWAPPED), UNSUPPORTED, "does not read what attention returns"),
        (lambda: shuffled("llama", tiled=True), FAILED, "from the model's own eager attention"),
    ],
    ids=["a nameless argument", "own positions", "queries", "normed queries", "values", "KV heads"],
)
def test_layers_and_heads_that_differ_from_the_anatomy_are_noticed(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    """Arguments without a name, positions that a layer counts for itself, and heads in another order."""
    with pytest.raises(error, match=message):
        check(make())


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_heads_in_their_own_order_are_not_refused(family: Any) -> None:
    """The attention of these tests is the library's but for the order."""
    assert check(shuffled(family)).branches is not None


STATES: list[tuple[float, float | None]] = [(0.01, None), (0.1, None), (1.0, None), (0.1, 0.0), (0.1, 1e-6)]
"""The scale of all weights, and of those of the state where it is another."""
LARGEST_ACCEPTED = 0.3
"""Up to this scale the check accepts the model without a state on every processor: under `--rounding 1` to `6` it uses
up to a fifth of its allowance. At 1 scores are so far apart that rounding alone uses up to four times the allowance."""
MESSAGES: dict[str, str] = {
    "a recurrent branch": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(Recurrent\), besides attention",
    "a token shift": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(TokenShift\)",
    "the first token": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(FirstToken\)",
    "absolute positions": r"layer 0 \(BranchedLayer\), with random weights and run from token 1 on, is off",
    "keys of the token before": r"layer 0 \(LlamaDecoderLayer\) mixes tokens by its own forward",
    "values of the layer below": r"layer 1 \(LlamaDecoderLayer\) mixes tokens|the values in layer 1 are not",
}


@pytest.mark.parametrize("scales", sampled(STATES, (0.01, None), (0.1, 0.0)))
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_beside_attention_is_refused(kind: str, scales: tuple[float, float | None]) -> None:
    """At every initial scale, and the reason names it; also where it starts at nothing: training would let it grow, and
    no comparison of numbers shows it yet. The same model without a state is accepted, at scales where rounding decides
    nothing."""
    scale, initial = scales
    with pytest.raises(errors.ModelError, match=MESSAGES[kind]):
        check(stateful(kind, scale, initial=initial))
    if kind == KINDS[0]:
        assert check(stateful(NO_STATE, min(scale, LARGEST_ACCEPTED))).branches is not None


def test_keys_of_another_layer_are_noticed_by_a_layer_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should what is computed per token look right: what another layer left behind is not there, or another's, after a
    run of another prompt."""
    monkeypatch.setattr(replays, "_check_token_mixing", lambda *_: None)
    model = stateful("values of the layer below", 0.3)
    anatomy, surgeon = derive(model), TorchSurgeon(model, derive(model))
    prompt = draw_tokens(model, anatomy)
    with watch_modules(model, anatomy) as calls:
        recording = surgeon.record(prompt, keep=STAGES)
    surgeon.record(prompt.flip(1))
    with pytest.raises(errors.FailedSelfCheck, match="run alone on its recorded input, is off by"):
        replays.check_mixing(model, anatomy, recording, calls, Allowance.of_model(model, anatomy))


def test_redrawn_weights_are_put_back_and_differ_in_between() -> None:
    layer: nn.Module = tiny("gemma3").model.layers[0]
    before = {name: weight.clone() for name, weight in layer.named_parameters()}
    with redraw_weights(layer, seed=0):
        random_weights = {name: weight.clone() for name, weight in layer.named_parameters()}
    assert not any(torch.equal(random_weights[name], weight) for name, weight in before.items())
    assert all(weight.isfinite().all() and weight.std() > 0.05 for weight in random_weights.values())
    with contextlib.suppress(RuntimeError), redraw_weights(layer, seed=0):
        raise RuntimeError("in the middle")
    assert all(torch.equal(weight, before[name]) for name, weight in layer.named_parameters())


@pytest.mark.parametrize(("shift", "factor", "is_right"), [(0, 1.0, True), (1, 1.0, False), (0, 3.0, False)])
def test_other_heads_and_large_gates_are_refused(shift: int, factor: float, is_right: bool) -> None:
    """z of the next head, or three times as large, is no gated output of its head."""
    model = RandomModel("qwen3_next").build()
    anatomy = derive(model)
    recording = TorchSurgeon(model, anatomy).record(torch.arange(3, 15)[None], keep={"z", "scores"})
    parts = next(part for part in anatomy.parts if part.has_gate)
    stages = {site: values[parts.number] for site, values in recording.sites.items() if site in ("scores", "values")}
    stages["z"] = factor * recording.sites["z"][parts.number].roll(shift, dims=1)
    allowance = Allowance.of_model(model, anatomy).one_layer
    if is_right:
        verify._check_gate(model, parts, stages, allowance)
        return
    with pytest.raises(errors.UnsupportedArchitecture, match="is not the output of its heads times a gate"):
        verify._check_gate(model, parts, stages, allowance)
