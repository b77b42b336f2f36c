"""Every family: the self-check accepts it, replays are its own forward, and plain hooks are the library's model."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rebinding.models import check
from rebinding.models.reference import Cell
from rebinding.surgery import Edit, Read, TorchSurgeon, derive
from rebinding.surgery.sites import SITES
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.everyday import chosen, sampled
from tests.families.engines import FIRST, error_of_rows, make_batch, make_surgeon, read_all, run_reference, tolerance
from tests.families.hooks import Forward, _run, norm_values, rotate, run_with_hooks
from tests.families.models import (
    ALL_MODELS,
    COMMON,
    DIFFERENT,
    EVERYDAY,
    FAMILIES,
    LENGTH,
    N_HEADS,
    PROMPTS,
    Family,
    RandomModel,
    configure,
    draw_weights,
    reference_model,
)
from tests.families.tables import TABLES

OTHER_SETTINGS: tuple[tuple[Family, str, Any], ...] = (
    ("gpt_oss", "sliding_window", 64),
    ("gpt_oss", "swiglu_limit", 100.0),
    ("llama4_text", "attention_chunk_size", 64),
    ("llama4_text", "no_rope_layers", [1, 1, 1, 1]),
    ("llama4_text", "attn_scale", 0.0),
    ("llama4_text", "use_qk_norm", False),
    ("gemma4_text", "sliding_window", 64),
    ("gemma4_text", "final_logit_softcapping", 100.0),
    ("gemma3n_text", "sliding_window", 64),
    ("gemma3n_text", "activation_sparsity_pattern", [0.0] * 6),
    ("gpt2", "scale_attn_by_inverse_layer_idx", False),
)


FOR_IMAGES = ("model.vision_tower.", "model.multi_modal_projector.")
"""Weights of the multimodal family that no prompt of text reaches."""


@torch.no_grad()
def logits_of(built: PreTrainedModel, model: RandomModel) -> Tensor:
    """Logits of all prompts: (prompt, token, vocabulary)."""
    logits: Tensor = built(input_ids=model.prompts, use_cache=False).logits
    return logits


@pytest.mark.parametrize("model", sampled(EVERYDAY, RandomModel("gpt_oss")), ids=str)
def test_each_weight_matters(model: RandomModel) -> None:
    """Shift the entries of one weight after the other, and halve them: norms undo a factor alone. What is for images
    never matters."""
    built = model.build()
    clean, idle = logits_of(built, model), []
    for name, weight in built.named_parameters():
        original = weight.clone()
        weight.copy_(original.roll(1, -1) * 0.5)
        if float((logits_of(built, model) - clean).abs().max()) <= MIN_CHANGE_SHARE * tolerance(model):
            idle.append(name)
        weight.copy_(original)
    for_images = [name for name, _ in built.named_parameters() if name.startswith(FOR_IMAGES)]
    assert bool(for_images) == (model.family == "gemma3_multimodal")
    assert [name for name in idle if name.startswith(FOR_IMAGES)] == for_images
    of_text = [name for name in idle if not name.startswith(FOR_IMAGES)]
    assert all(name.endswith("k_proj.bias") for name in of_text), of_text  # without RoPE, the softmax undoes it


@pytest.mark.parametrize(
    ("family", "setting", "value"), chosen(OTHER_SETTINGS, lambda family, *_: family in ("llama4_text", "gpt2"))
)
def test_each_setting_matters(family: Family, setting: str, value: Any) -> None:
    """The same weights with another setting."""
    model = RandomModel(family)
    other = configure(family, **{setting: value})
    draw_weights(other, model.scale, model.seed)
    change = (logits_of(other, model) - logits_of(model.build(), model)).abs().max()
    assert change > MIN_CHANGE_SHARE * tolerance(model)


@pytest.mark.parametrize("family", sampled(FAMILIES, "qwen3_next", "gemma4_text_equal"))
def test_derived_anatomy_passes_the_self_check(family: Family) -> None:
    """Also under `--rounding`: at this scale no family exceeds what the check allows for."""
    built = RandomModel(family, scale=0.6).build()
    assert check(built) == derive(built)


EVERY_PROMPT = torch.arange(PROMPTS)


@pytest.mark.parametrize(
    ("model", "common"),
    chosen(product(ALL_MODELS, (COMMON, 0)), lambda model, common: model in (EVERYDAY if common else DIFFERENT)),
    ids=str,
)
def test_every_site_is_read_as_hooks_read_it(model: RandomModel, common: int) -> None:
    """Where prompts begin alike, the recording continues the first prompt; else it runs them whole."""
    table, prompts = TABLES[model.family], model.prompts
    prompts[:, 0] = 3 + (0 if common else EVERY_PROMPT)
    reads = [read_all(table, site, layer) for site in SITES for layer in table.layers_with(site)]
    surgeon, _ = make_surgeon(model)
    recording = surgeon.record(prompts, keep=set(SITES) - {"logits"})
    actual = surgeon.run(recording, [], reads)
    expected = run_with_hooks(reference_model(model), model.family, prompts, [], reads)
    errors = {
        f"{read.site} {read.layer}": float(error_of_rows([value], [truth]).max())
        for read, value, truth in zip(reads, actual, expected, strict=True)
    }
    assert max(errors.values()) <= tolerance(model), errors


@pytest.mark.parametrize("first", [0, FIRST, LENGTH - 1], ids=str)
@pytest.mark.parametrize("model", sampled(ALL_MODELS, *DIFFERENT), ids=str)
def test_a_replay_without_a_change_is_the_forward(model: RandomModel, first: int) -> None:
    """A layer's input at one token is overwritten and restored: the run continues from there with the same values."""
    table = TABLES[model.family]
    layers = table.layers_with("resid")
    source = torch.arange(len(layers)) % PROMPTS
    inputs = [Read("resid", at=[first], layer=layer) for layer in layers]
    restored = run_reference(model, source, [], inputs)
    edits = [
        Edit("resid", value, at=[first], layer=layer, rows=[row])
        for row, layer in enumerate(layers)
        for value in (torch.full((table.hidden,), 3.0), restored[row][row])
    ]
    reads = [
        Read("resid", at=range(first, LENGTH), layer=len(table.layers)),
        Read("logits", at=range(first, LENGTH)),
    ]
    surgeon, recording = make_surgeon(model)
    actual = surgeon.run(recording, edits, reads, source=source, allow_noop=True)
    errors = error_of_rows(actual, run_reference(model, source, [], reads))
    assert errors.max() <= tolerance(model), dict(zip(layers, errors.tolist(), strict=True))
    broken = surgeon.run(recording, edits[::2], reads, source=source)
    assert error_of_rows(broken, actual).min() > tolerance(model)


@pytest.mark.parametrize("cell", [Cell("resid"), Cell("k", "head"), Cell("z", attention="frozen")], ids=str)
@pytest.mark.parametrize("model", sampled(EVERYDAY, *DIFFERENT[1:4]), ids=str)
def test_rows_in_parts_give_the_same(model: RandomModel, cell: Cell) -> None:
    """Three rows at a time, that start at other layers."""
    batch = make_batch(model.family, cell, is_windowed=True)
    surgeon, recording = make_surgeon(model)
    parts = TorchSurgeon(surgeon.model, surgeon.anatomy, rows=3)
    whole, split = (
        any_surgeon.run(recording, batch.edits, batch.reads, source=batch.source, attention=cell.attention)
        for any_surgeon in (surgeon, parts)
    )
    assert error_of_rows(split, whole).max() <= tolerance(model)


@pytest.mark.parametrize("model", EVERYDAY, ids=str)
def test_which_families_run_frozen_attention_on_few_tokens(model: RandomModel) -> None:
    """Gemma 3n and 4 add more than two branches to the residual stream, or scale it."""
    surgeon, _ = make_surgeon(model)
    has_two_branches = not model.family.startswith(("gemma3n", "gemma4")) or model.family == "gemma4_text_equal"
    assert (surgeon.anatomy.branches is not None) == has_two_branches


@pytest.mark.parametrize("model", EVERYDAY, ids=str)
def test_without_edits_the_numbers_are_the_librarys(model: RandomModel) -> None:
    """Residual, patterns and logits, from the library's own outputs."""
    table = TABLES[model.family]
    with torch.no_grad():
        own = reference_model(model)(
            input_ids=model.prompts, use_cache=False, output_attentions=True, output_hidden_states=True
        )
    with_heads = table.layers_with("pattern")
    reads = [
        *(Read("resid", at=range(LENGTH), layer=layer) for layer in range(len(table.layers))),
        *(read_all(table, "pattern", layer) for layer in with_heads),
        Read("logits", at=range(LENGTH)),
    ]
    patterns = [pattern for pattern in own.attentions if pattern is not None]
    residuals = [torch.cat(list(value), -1) if table.streams > 1 else value for value in own.hidden_states[:-1]]
    expected = [*residuals[: len(table.layers)], *patterns, own.logits]
    actual = run_with_hooks(reference_model(model), model.family, model.prompts, [], reads)
    for value, truth in zip(actual, expected, strict=True):
        assert value.shape == truth.shape
        assert (value - truth).abs().max() <= allowance(truth) / 10


@pytest.mark.parametrize("model", EVERYDAY, ids=str)
def test_raw_sites_lead_to_those_inside_attention(model: RandomModel) -> None:
    """Norm and RoPE of the table's queries and keys, the norm of its values: what attention gets."""
    table = TABLES[model.family]
    seen: set[tuple[str, int]] = set()

    class Watch(Forward):
        def at(self, site: str, layer: int, value: Tensor) -> Tensor:
            if site in ("q_rot", "k_rot", "v_seen"):
                letter, source = site[0], table.source_of(site[0], layer)
                module, raw = self.modules[source], self.raw[letter, source]
                raw = raw.repeat_interleave(N_HEADS // raw.shape[1], dim=1)  # (row, head, token, head_dim)
                truth = norm_values(module, raw) if letter == "v" else rotate(module, raw, self.positions, letter)
                torch.testing.assert_close(value, truth, rtol=1e-5, atol=1e-5)
                seen.add((letter, layer))
            return super().at(site, layer, value)

    with torch.no_grad():
        _run(reference_model(model), model.prompts, Watch(table, [], []))
    assert seen == {(site, layer) for site in "qkv" for layer in table.layers_with(site)}
