"""A layer that carries anything besides attention's keys and values is refused by structure, whatever its weights."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from transformers import FalconH1Config, FalconH1ForCausalLM

from rebinding.models import check, errors, replays
from rebinding.models.replays import redraw_weights
from tests.models.stateful import KINDS, NO_STATE, stateful
from tests.surgery.models import tiny

SCALES = (0.01, 0.1, 1.0)
MESSAGES: dict[str, str] = {
    "a recurrent branch": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(Recurrent\), besides attention",
    "a causal convolution": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(Convolution\)",
    "a token shift": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(TokenShift\)",
    "a running mean": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(RunningMean\)",
    "the first token": r"layer 0 \(BranchedLayer\) mixes tokens by branch \(FirstToken\)",
    "absolute positions": r"layer 0 \(BranchedLayer\), with random weights and run from token 1 on, is off",
    "keys of the token before": r"layer 0 \(LlamaDecoderLayer\) mixes tokens by its own forward",
    "values of the layer below": r"layer 1 \(LlamaDecoderLayer\) mixes tokens|the values in layer 1 are not",
}


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_beside_attention_is_refused(kind: str, scale: float) -> None:
    """At every initial scale, and the reason names it."""
    with pytest.raises(errors.ModelError, match=MESSAGES[kind]):
        check(stateful(kind, scale))


@pytest.mark.parametrize("initial", [0.0, 1e-6])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_starts_at_nothing_is_refused_too(kind: str, initial: float) -> None:
    """Training would let it grow, and no comparison of numbers shows it yet."""
    with pytest.raises(errors.ModelError, match=MESSAGES[kind]):
        check(stateful(kind, 0.1, initial=initial))


@pytest.mark.parametrize("scale", SCALES)
def test_the_same_model_without_a_state_is_accepted(scale: float) -> None:
    assert check(stateful(NO_STATE, scale)).branches is not None


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_a_state_space_branch_of_the_library_is_refused(scale: float) -> None:
    """Falcon-H1, whose branch is small at its default initialisation."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16}
    config = FalconH1Config(
        vocab_size=200,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=96,
        mamba_n_groups=1,
        initializer_range=scale,
        **sizes,
    )
    with pytest.raises(
        errors.UnsupportedArchitecture, match=r"mixes tokens by mamba \(FalconH1Mixer\), besides attention"
    ):
        check(FalconH1ForCausalLM(config).eval().requires_grad_(False))


def test_keys_of_another_layer_are_noticed_by_a_layer_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should what is computed per token look right: what another layer left behind is not there, or another's."""
    monkeypatch.setattr(replays, "_check_token_mixing", lambda *_: None)
    with pytest.raises(errors.FailedSelfCheck, match="run alone on its recorded input, is off by"):
        replays.check_mixing(*_recorded_with_shared_values())


def _recorded_with_shared_values() -> Any:
    """What `check_mixing` is called with, for a model whose values are shared, after a run of another prompt."""
    from rebinding.models.probe import Allowance, draw_tokens, watch_modules
    from rebinding.models.verify import STAGES
    from rebinding.surgery import TorchSurgeon, derive

    model = stateful("values of the layer below", 0.3)
    anatomy, surgeon = derive(model), TorchSurgeon(model, derive(model))
    prompt = draw_tokens(model, anatomy)
    with watch_modules(model, anatomy) as calls:
        recording = surgeon.record(prompt, keep=STAGES)
    surgeon.record(prompt.flip(1))
    return model, anatomy, recording, calls, Allowance.of_model(model, anatomy)


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
