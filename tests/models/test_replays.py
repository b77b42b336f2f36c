"""A replay repeats all that a layer is called with; a model of which that is not true is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rebinding.models import check, errors, verify
from rebinding.surgery import Anatomy, Edit, Read, TorchSurgeon, recorder
from rebinding.surgery.recording import layer_call
from tests.models.unusual_models import (
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
)
from tests.surgery.models import tokens

SWAPPED = [1, 0, 2, 3, 4, 5]
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


def test_a_layer_that_scales_what_it_puts_out_has_no_known_norms() -> None:
    assert check(peculiar(Plain, ScaledLayer)).branches is None


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


def test_nameless_layers_are_refused() -> None:
    with pytest.raises(errors.UnsupportedArchitecture, match="called with 1 arguments without a name"):
        check(peculiar(ByPlace, NamelessLayer))


def test_positions_that_a_layer_counts_for_itself_are_noticed() -> None:
    with pytest.raises(errors.FailedSelfCheck, match="with random weights and run from token 1 on, is off by"):
        check(peculiar(Plain, CountingLayer))


def test_a_residual_that_is_scaled_between_layers_is_noticed() -> None:
    with pytest.raises(errors.UnsupportedArchitecture, match="the output of layer 0 is not the next layer's input"):
        check(peculiar(Scaling))


def test_and_would_be_by_its_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_check_chain", lambda *_: None)
    with pytest.raises(errors.FailedSelfCheck, match="from layer 0, token 31"):
        check(peculiar(Scaling))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_heads_that_ask_in_another_order_are_noticed(family: Any) -> None:
    with pytest.raises(errors.UnsupportedArchitecture, match=r"the q of layer 0 is not the slice of self_attn\.q_proj"):
        check(shuffled(family, query_order=SWAPPED))


def test_heads_that_are_projected_in_another_order_are_noticed() -> None:
    with pytest.raises(errors.UnsupportedArchitecture, match="does not read what attention returns"):
        check(shuffled("llama", value_order=SWAPPED))


def test_heads_that_share_other_keys_are_noticed() -> None:
    with pytest.raises(errors.FailedSelfCheck, match="from the model's own eager attention"):
        check(shuffled("llama", tiled=True))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_heads_in_their_own_order_are_not_refused(family: Any) -> None:
    """The attention of these tests is the library's but for the order."""
    assert check(shuffled(family)).branches is not None
