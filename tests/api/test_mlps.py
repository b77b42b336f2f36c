"""MLPs as senders and receivers against plain hooks on the library's own model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import rebinding
from rebinding import MLP, Pairs, SurgeryError
from tests.api.small import LAYERS, LENGTH, logits_of, model_of, prompts_of
from tests.families.models import Family

TOLERANCE = 1e-5
"""Logits of a few units in float64 that pass through float32: some tens of units of 1.2e-7."""
LAST = LENGTH - 1
Change = Callable[[Tensor], Tensor]


@contextmanager
def hooked(model: PreTrainedModel, inputs: dict[str, Change], outputs: dict[str, Change]) -> Iterator[None]:
    """Change the input of some modules and the output of others."""
    with ExitStack() as stack, torch.no_grad():
        for path, change in inputs.items():
            hook: Any = lambda module, args, change=change: (change(args[0]),)  # noqa: E731
            stack.callback(model.get_submodule(path).register_forward_pre_hook(hook).remove)
        for path, change in outputs.items():
            after: Any = lambda module, args, output, change=change: change(output)  # noqa: E731
            stack.callback(model.get_submodule(path).register_forward_hook(after).remove)
        yield


def place(path: str, layer: int) -> str:
    return f"model.layers.{layer}.{path}"


class Seen(NamedTuple):
    """What heads (layer: (prompt, token, head x head_dim)) and MLPs (layer: (prompt, token, hidden)) put out."""

    z: dict[int, Tensor]
    mlp: dict[int, Tensor]


def outputs_of(model: PreTrainedModel, ids: Tensor) -> Seen:
    seen = Seen({}, {})

    def keep(kept: dict[int, Tensor], layer: int, value: Tensor) -> Tensor:
        kept[layer] = value.clone()
        return value

    heads = {place("self_attn.o_proj", layer): partial(keep, seen.z, layer) for layer in range(LAYERS)}
    with hooked(model, heads, {place("mlp", layer): partial(keep, seen.mlp, layer) for layer in range(LAYERS)}):
        model(input_ids=ids)
    return seen


class Path(NamedTuple):
    sender: tuple[int, int]
    receiver: tuple[int, int] | None = None
    component: str | None = None
    freeze_mlps: bool = False


def follow(model: PreTrainedModel, pairs: Pairs, path: Path) -> Tensor:
    """The logits after path patching at the last token, by two forward passes with hooks."""
    clean, noise = (outputs_of(model, side.tokens) for side in (pairs.clean, pairs.noise))
    width = model.config.head_dim
    received: list[Tensor] = []

    def head_run(layer: int, value: Tensor) -> Tensor:
        held = clean.z[layer].clone()
        if (layer, path.sender[1]) == path.sender:
            own = slice(path.sender[1] * width, (path.sender[1] + 1) * width)
            held[:, LAST, own] = noise.z[layer][:, LAST, own]
        return held

    def mlp_run(layer: int, value: Tensor) -> Tensor:
        if (layer, MLP) == path.receiver:
            received.append(value[:, LAST].clone())
        value = (clean.mlp[layer] if path.freeze_mlps else value).clone()
        if (layer, MLP) == path.sender:
            value[:, LAST] = noise.mlp[layer][:, LAST]
        return value

    def keep(value: Tensor) -> Tensor:
        received.append(value[:, LAST].clone())
        return value

    heads = {place("self_attn.o_proj", layer): partial(head_run, layer) for layer in range(LAYERS)}
    mlps = {place("mlp", layer): partial(mlp_run, layer) for layer in range(LAYERS)}
    site = None
    if path.receiver is not None and path.component != "mlp":
        site = place(f"self_attn.{path.component}_proj", path.receiver[0])
    with hooked(model, heads, mlps | ({site: keep} if site else {})):
        after_sender = logits_of(model, pairs.clean.tokens)
    if path.receiver is None:
        return after_sender
    (value,), (layer, head) = received, path.receiver

    def write(output: Tensor) -> Tensor:
        output = output.clone()
        own = slice(None) if site is None else slice(head * width, (head + 1) * width)
        output[:, LAST, own] = value[:, own]
        return output

    with hooked(model, {}, {site or place("mlp", layer): write}):
        return logits_of(model, pairs.clean.tokens)


CASES = (
    Path((1, MLP)),
    Path((1, MLP), freeze_mlps=True),
    Path((1, 2), freeze_mlps=True),
    Path((1, MLP), (3, 1), "q"),
    Path((1, MLP), (3, 1), "q", True),
    Path((1, 2), (3, 1), "q", True),
    Path((1, 2), (2, MLP), "mlp"),
    Path((1, 2), (3, MLP), "mlp", True),
    Path((2, 2), (2, MLP), "mlp"),
    Path((2, 2), (2, MLP), "mlp", True),
    Path((0, MLP), (2, MLP), "mlp"),
    Path((0, MLP), (2, MLP), "mlp", True),
)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_path_of_an_mlp_equals_hooks(family: Family) -> None:
    """From and to MLPs, through other MLPs and past them; gemma3 has norms after both branches."""
    model = model_of(family)
    raw, pairs = model.loaded.model, Pairs(prompts_of(model, family), prompts_of(model, family, first=2))
    before = logits_of(raw, pairs.clean.tokens)
    answers = pairs.clean.candidates()

    def lead(logits: Tensor) -> Tensor:
        of_answers = logits.gather(1, answers)
        return of_answers[:, 0] - of_answers[:, 1:].mean(1)

    expected = [float((lead(follow(raw, pairs, path)) - lead(before)).mean()) for path in CASES]
    scores = []
    for path in CASES:
        receiver = {} if path.receiver is None else {"receivers": [path.receiver], "receivers_at": "readout"}
        table = rebinding.patch_paths(
            model, pairs, senders=[path.sender], component=path.component, freeze_mlps=path.freeze_mlps, **receiver
        )
        assert [*zip(table["layer"], table["head"], strict=True)] == [path.sender]
        scores.append(float(table["score"].iloc[0]))
    assert scores == pytest.approx(expected, abs=TOLERANCE)
    assert min(map(abs, expected)) > 10 * TOLERANCE
    # from a head to the MLP of its layer nothing is between; else freezing, sender and receiver all matter
    assert len({round(score, 5) for score in expected}) == len(CASES) - 1


def test_mlps_that_cannot_send_or_receive_are_refused() -> None:
    model = model_of()
    pairs = Pairs(prompts_of(model), prompts_of(model, first=2))
    to_mlp = partial(rebinding.patch_paths, model, pairs, receivers=[(2, MLP)], receivers_at="readout")
    with pytest.raises(SurgeryError, match=r"no MLP in layer 4: the model has layers 0 to 3"):
        rebinding.patch_paths(model, pairs, senders=[(4, MLP)])
    with pytest.raises(SurgeryError, match=r"MLPs receive with component='mlp', and heads with 'q'"):
        to_mlp(component="v")
    with pytest.raises(SurgeryError, match=r"no sender is below the last receiver \(layer 2\)"):
        to_mlp(component="mlp", senders=[(2, MLP), (3, 0)])
    with pytest.raises(SurgeryError, match="leave freeze=True"):
        rebinding.patch_paths(model, pairs, freeze=False, freeze_mlps=True)
