"""A certificate passes exact surgeons, and names the site at which another one is wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rebinding.models import check, load
from rebinding.models.probe import Allowance
from rebinding.models.reference import CELLS, Cell
from rebinding.paper.certificate import Certificate
from rebinding.surgery import Anatomy, RecordedRun, SurgeryError, TorchSurgeon, derive, replay
from rebinding.surgery.calling import MixerRun
from rebinding.surgery.layers import LayerEdit, LayerRead
from tests.models.census import build
from tests.surgery.models import FAMILIES, Family, tiny
from tests.surgery.models import SIZES as TINY_SIZES

LIVE = [cell for cell in CELLS if cell.attention == "live"]
BLIND = 50
"""A deviation has to be this much smaller than the effect of the edit, or the comparison shows nothing."""


@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_certified_at_every_site_and_layer(family: Family) -> None:
    model = tiny(family)
    certificate = check(model, "certify", derive(model))
    assert certificate.failures == []
    assert [result.site for result in certificate.sites] == [str(cell) for cell in CELLS]
    for result in certificate.sites:
        first = result.site.split()[0]
        assert result.layers == {"resid": (0, 1, 2, 3, 4), "logits": (4,)}.get(first, (0, 1, 2, 3))
        assert result.silent == ()
        assert BLIND * result.deviation < result.effect
    assert (certificate.gaps, certificate.errors) == ((), ())


def test_a_model_of_16_bits_is_certified_and_left_unchanged() -> None:
    model = tiny("gemma2").to(torch.bfloat16)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    certificate = check(model, "certify", derive(model), layers=[2])
    assert (certificate.failures, certificate.dtype, certificate.layers) == ([], "bfloat16", (2,))
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_planted_model_is_certified() -> None:
    model = load("planted:pointer")
    certificate = check(model.model, "certify", model.anatomy, layers=[0, 4])
    assert certificate.failures == []
    assert certificate.n_sites == 12


def test_the_nnsight_surgeon_is_checked_too() -> None:
    model = tiny("qwen3")
    assert check(model, "certify", derive(model), layers=[0], has_nnsight=True).gaps == ()
    model = build("gpt2")
    gaps = check(model, "certify", derive(model), layers=[0], has_nnsight=True).gaps
    assert any(gap.what.startswith("nnsight") and "k_rot" in gap.what for gap in gaps)


def test_sites_that_a_model_lacks_are_named_with_the_reason() -> None:
    model = build("olmo2")
    anatomy = replace(derive(model), branches=None)
    certificate = check(model, "certify", anatomy, layers=[0, 2])
    assert certificate.failures == []
    assert [(gap.what, gap.layers) for gap in certificate.gaps] == [("k head", (0, 2)), ("fast frozen path", ())]
    assert "normalises all heads together" in certificate.gaps[0].reason
    assert "k head" not in {result.site for result in certificate.sites}


class FaultySurgeon(TorchSurgeon):
    """A surgeon that changes edits before it makes them, and results before it returns them."""

    def __init__(
        self,
        model: Any,
        anatomy: Anatomy,
        *,
        change_edit: Callable[[LayerEdit], LayerEdit | None] = lambda edit: edit,
        change_value: Callable[[Tensor, LayerRead], Tensor] = lambda value, read: value,
    ) -> None:
        super().__init__(model, anatomy)
        self.change_edit, self.change_value = change_edit, change_value

    def run_by_layer(
        self, recording: RecordedRun, edits: Sequence[LayerEdit], reads: Sequence[LayerRead], **options: Any
    ) -> list[Tensor]:
        self.attention = options.get("attention", "live")
        made = [changed for edit in edits if (changed := self.change_edit(edit)) is not None]
        values = super().run_by_layer(recording, made, reads, **options)
        return [self.change_value(value, read) for value, read in zip(values, reads, strict=True)]


@functools.cache
def model_and_anatomy() -> tuple[Any, Anatomy]:
    model = tiny("gemma3")
    return model, derive(model)


def certify_faulty(**changes: Any) -> Certificate:
    model, anatomy = model_and_anatomy()
    return check(model, "certify", anatomy, surgeon=FaultySurgeon(model, anatomy, **changes), layers=[0, 2])


def wrong_sites(certificate: Certificate) -> set[str]:
    return {result.site for result in certificate.sites if result.deviation > 1}


def is_at(edit: LayerEdit, cell: Cell) -> bool:
    """Whether an edit is one of a cell, with attention live or frozen."""
    return edit.mode == "add" and (edit.site, edit.scope) == (cell.site, cell.scope) and edit.value.abs().max() > 1e-6


@pytest.mark.parametrize("cell", LIVE, ids=str)
def test_a_surgeon_that_forgets_a_site_is_named(cell: Cell) -> None:
    certificate = certify_faulty(change_edit=lambda edit: None if is_at(edit, cell) else edit)
    assert wrong_sites(certificate) - {f"{cell.site} frozen"} == {str(cell)}
    assert any(failure.startswith(f"{cell}: the edit at layer") for failure in certificate.failures)


@pytest.mark.parametrize("cell", [cell for cell in LIVE if cell.site in ("q", "k_rot", "pattern", "z", "v")], ids=str)
def test_a_surgeon_that_edits_another_head_is_named(cell: Cell) -> None:
    def shift_heads(edit: LayerEdit) -> LayerEdit:
        if not is_at(edit, cell):
            return edit
        count = 2 if cell.scope == "group" else 6
        assert edit.heads is not None
        return replace(edit, heads=(edit.heads + 1) % count)

    certificate = certify_faulty(change_edit=shift_heads)
    assert wrong_sites(certificate) - {f"{cell.site} frozen"} == {str(cell)}


def test_a_surgeon_that_edits_another_layer_is_named() -> None:
    certificate = certify_faulty(
        change_edit=lambda edit: replace(edit, layer=1) if (edit.site, edit.layer) == ("mlp_out", 2) else edit
    )
    assert wrong_sites(certificate) == {"mlp_out", "mlp_out frozen"}
    assert {result.layer for result in certificate.sites if result.deviation > 1} == {2}


def test_a_surgeon_that_drops_the_last_token_is_named() -> None:
    """Its results there are those of the token before."""
    _, anatomy = model_and_anatomy()

    def drop(value: Tensor, read: LayerRead) -> Tensor:
        is_final = (read.site, read.layer) == ("resid", anatomy.n_layers)
        return torch.cat([value[:, :-1], value[:, -2:-1]], dim=1) if is_final and value.shape[1] > 1 else value

    certificate = certify_faulty(change_value=drop)
    assert wrong_sites(certificate) == {str(cell) for cell in CELLS if cell.site != "logits"}
    assert {result.token for result in certificate.sites if result.deviation > 1} == {certificate.tokens - 1}
    assert certificate.replay > 1


@pytest.mark.parametrize(("factor", "is_passed"), [(0.5, True), (100.0, False)])
def test_a_surgeon_may_be_off_by_the_allowance_only(factor: float, is_passed: bool) -> None:
    model, anatomy = model_and_anatomy()
    relative = factor * Allowance.of_model(model, anatomy).relative
    certificate = certify_faulty(change_value=lambda value, read: value * (1 + relative))
    assert certificate.is_passed is is_passed
    for result in certificate.sites:
        assert result.deviation == pytest.approx(factor, rel=0.1)


def test_wrong_reads_are_named() -> None:
    """Other heads are returned than those that are asked for."""
    certificate = certify_faulty(
        change_value=lambda value, read: value.roll(1, dims=1) if read.site in ("k_rot", "scores") else value
    )
    assert {result.site for result in certificate.sites if (result.read or 0) > 1} == {"k_rot", "scores"}
    assert wrong_sites(certificate) == set()
    assert not certificate.is_passed


def test_nan_is_a_deviation() -> None:
    certificate = certify_faulty(change_value=lambda value, read: value * float("nan"))
    assert wrong_sites(certificate) == {str(cell) for cell in CELLS}


@pytest.mark.parametrize(("error", "is_passed"), [(SurgeryError("no such site"), True), (KeyError("q"), False)])
def test_a_refusal_is_a_gap_and_another_error_a_failure(error: Exception, is_passed: bool) -> None:
    def refuse(edit: LayerEdit) -> LayerEdit:
        if (edit.site, edit.layer) == ("q", 2):
            raise error
        return edit

    certificate = certify_faulty(change_edit=refuse)
    assert certificate.is_passed is is_passed
    (gap,) = certificate.gaps if is_passed else certificate.errors
    assert (gap.what, gap.layers) == ("q", (2,))
    assert str(error) in gap.reason
    (q,) = (result for result in certificate.sites if result.site == "q")
    assert q.layers == (0,)


def test_an_edit_without_effect_fails() -> None:
    """Layers that do not reach the output: nothing that is edited there can be seen."""
    model = tiny("llama")
    for weight in (model.model.layers[2].self_attn.o_proj, model.model.layers[2].mlp.down_proj):
        weight.weight.zero_()
        weight.bias.zero_()
    certificate = check(model, "certify", derive(model), layers=[2])
    silent = {result.site for result in certificate.sites if result.silent == (2,)}
    assert silent == {str(cell) for cell in CELLS if cell.site not in ("resid", "mlp_out", "logits")}
    assert {failure.partition(":")[0] for failure in certificate.failures} == silent
    assert "no edit at layer 2 changes the output" in certificate.failures[0]


SIZES = {name: size for name, size in TINY_SIZES.items() if name != "attn_implementation"} | {"initializer_range": 0.2}
ALTERNATING = ["sliding_attention", "full_attention"] * 2
LINEAR = {"linear_key_head_dim": 6, "linear_value_head_dim": 5, "linear_num_key_heads": 2, "linear_num_value_heads": 4}
FEW_EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "gemma3n_text": {
        "num_hidden_layers": 6, "num_kv_shared_layers": 2, "altup_num_inputs": 3, "laurel_rank": 6,
        "layer_types": [*ALTERNATING, "sliding_attention", "full_attention"], "hidden_size_per_layer_input": 7,
        "vocab_size_per_layer_input": 101, "sliding_window": 5, "activation_sparsity_pattern": [0.0] * 6,
    },
    "qwen3_5_text": LINEAR | {"layer_types": ["linear_attention", "full_attention"] * 2, "initializer_range": 0.1},
    "gpt_oss": FEW_EXPERTS | {"sliding_window": 5, "layer_types": ALTERNATING},
    "llama4_text": FEW_EXPERTS
    | {"attention_chunk_size": 5, "no_rope_layers": [1, 0, 1, 0], "moe_layers": [1], "intermediate_size_mlp": 40},
}  # fmt: skip


@functools.cache
def checked(kind: str) -> tuple[PreTrainedModel, Anatomy]:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **SIZES | SETTINGS[kind])
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval().requires_grad_(False)
    return model, check(model)


def certificate_of(kind: str) -> Certificate:
    model, anatomy = checked(kind)
    return check(model, "certify", anatomy)


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_layer_is_certified_at_the_sites_that_it_has(kind: str) -> None:
    """In families whose layers differ: shared keys, residual streams, sinks, mixers, gates, chunks."""
    _, anatomy = checked(kind)
    certificate, layers = certificate_of(kind), range(anatomy.n_layers)
    assert certificate.failures == []
    with_heads = {layer for layer, _ in anatomy.heads}
    without_heads = {"resid": {*layers, len(layers)}, "logits": {len(layers)}, "mlp_out": {*layers}}
    for result in certificate.sites:
        assert set(result.layers) == without_heads.get(result.site.split()[0], with_heads), result.site
    gaps = {gap.reason: gap.layers for gap in certificate.gaps if gap.what != "fast frozen path"}
    lacking = tuple(sorted(set(layers) - with_heads))
    assert gaps == ({"the layer has no attention heads": lacking} if lacking else {})


def test_a_mixer_that_starts_in_the_middle_of_the_prompt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay runs it on its own window only."""
    monkeypatch.setattr(replay, "MixerRun", lambda before=None, output=None: MixerRun(output=output))
    certificate = certificate_of("qwen3_5_text")
    assert certificate.replay > 1
    wrong = {result.site for result in certificate.sites if result.deviation > 1}
    assert {"resid", "mlp_out", "z"} <= wrong
    assert not {site for site in wrong if site.endswith("frozen")}  # there its output is held


def test_keys_that_do_not_reach_the_layers_above_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay gives layers that share keys the recorded ones."""
    right = replay.complete_keys

    def recorded_keys(shared: Any, *arguments: Any) -> None:
        shared.clear()
        right(shared, *arguments)

    monkeypatch.setattr(replay, "complete_keys", recorded_keys)
    certificate = certificate_of("gemma3n_text")
    wrong = {result.site for result in certificate.sites if result.deviation > 1}
    assert {"resid", "k group", "v group"} <= wrong
    assert not {site for site in wrong if site.endswith("frozen")}  # there nothing reads keys
