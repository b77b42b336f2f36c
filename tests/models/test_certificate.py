"""A certificate passes exact surgeons, and names the site at which another one is wrong."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rebinding.models import check, load
from rebinding.models.certificate import FLOOR, Deviation
from rebinding.models.probe import Allowance, draw_tokens
from rebinding.models.reference import CELLS, Cell, Reference, Trial, cells_at, make_trials, softmax
from rebinding.paper.certificate import LARGEST, Certificate
from rebinding.surgery import Anatomy, RecordedRun, SurgeryError, TorchSurgeon, derive, replay
from rebinding.surgery.calling import MixerRun
from rebinding.surgery.layers import LayerEdit, LayerRead
from rebinding.surgery.sites import ATTENTIONS, Attention, Read
from tests.everyday import sampled
from tests.families.hooks import run_with_hooks
from tests.families.models import USUAL, Family, RandomModel, tiny
from tests.families.tables import TABLES
from tests.models.census import build

LIVE = [cell for cell in CELLS if cell.attention == "live"]
KINDS = Cell("resid"), Cell("k", "head"), Cell("scores"), Cell("logits")
"""Without heads; of single query heads; inside attention; after all layers."""
BLIND = 50
"""A deviation has to be this much smaller than the effect of the edit, or the comparison shows nothing."""


@pytest.mark.parametrize("family", sampled(USUAL, "gemma2"))
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
    certificate = check(model.model, "certify", model.anatomy, layers=[4])
    assert certificate.failures == []
    assert certificate.n_sites == 13


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
    assert [(gap.what, gap.layers) for gap in certificate.gaps] == [
        ("resid_mid, resid_mid frozen", (0, 2)), ("k head", (0, 2)), ("fast frozen path", ())
    ]  # fmt: skip
    assert "adds attention and MLP to the residual stream in a way that is not known" in certificate.gaps[0].reason
    assert "normalises all heads together" in certificate.gaps[1].reason
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


@pytest.mark.parametrize("cell", sampled(LIVE, *KINDS), ids=str)
def test_a_surgeon_that_forgets_a_site_is_named(cell: Cell) -> None:
    certificate = certify_faulty(change_edit=lambda edit: None if is_at(edit, cell) else edit)
    assert wrong_sites(certificate) - {f"{cell.site} frozen"} == {str(cell)}
    assert any(failure.startswith(f"{cell}: the edit at layer") for failure in certificate.failures)


@pytest.mark.parametrize("cell", [Cell("pattern"), Cell("v", "group"), Cell("v", "head")], ids=str)
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
    assert silent == {str(cell) for cell in CELLS if cell.site not in ("resid", "resid_mid", "mlp_out", "logits")}
    assert {failure.partition(":")[0] for failure in certificate.failures} == silent
    assert "no edit at layer 2 changes the output" in certificate.failures[0]


UNALIKE: tuple[Family, ...] = ("gemma3n_text", "qwen3_5_text", "gpt_oss", "llama4_text")
"""Families whose layers differ: shared keys, residual streams, sinks, mixers, gates, chunks."""


@functools.cache
def checked(family: Family) -> tuple[PreTrainedModel, Anatomy]:
    model = RandomModel(family, scale=0.6).build()
    return model, check(model)


def certificate_of(family: Family, **options: Any) -> Certificate:
    model, anatomy = checked(family)
    return check(model, "certify", anatomy, **options)


@pytest.mark.parametrize("family", UNALIKE)
def test_every_layer_is_certified_at_the_sites_that_it_has(family: Family) -> None:
    _, anatomy = checked(family)
    certificate, layers = certificate_of(family), range(anatomy.n_layers)
    assert certificate.failures == []
    with_heads = {layer for layer, _ in anatomy.heads}
    without_heads = {"resid": {*layers, len(layers)}, "logits": {len(layers)}}
    without_heads |= {site: {*layers} for site in ("resid_mid", "mlp_out")}
    for result in certificate.sites:
        assert set(result.layers) == without_heads.get(result.site.split()[0], with_heads), result.site
    gaps = {gap.reason: gap.layers for gap in certificate.gaps if gap.what != "fast frozen path"}
    lacking, no_middle = tuple(sorted(set(layers) - with_heads)), TABLES[family].middle is None
    assert gaps == ({"the layer has no attention heads": lacking} if lacking else {}) | (
        {anatomy.lacks_middle: tuple(layers)} if no_middle else {}
    )
    assert ("resid_mid" in {result.site for result in certificate.sites}) != no_middle


def test_a_mixer_that_starts_in_the_middle_of_the_prompt_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay runs it on its own window only."""
    monkeypatch.setattr(replay, "MixerRun", lambda before=None, output=None: MixerRun(output=output))
    certificate = certificate_of("qwen3_5_text", layers=[0, 1])
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
    certificate = certificate_of("gemma3n_text", layers=[2])
    wrong = {result.site for result in certificate.sites if result.deviation > 1}
    assert {"resid", "k group", "v group"} <= wrong
    assert not {site for site in wrong if site.endswith("frozen")}  # there nothing reads keys


# The reference of a certificate is what plain hooks give; and deviations by hand

LAYER, POSITION = 1, 20


@functools.cache
def reference_of(family: Family) -> Reference:
    model = tiny(family)
    anatomy = derive(model)
    return Reference(model, anatomy, draw_tokens(model, anatomy))


def trials_at(reference: Reference, layer: int, attention: Attention) -> dict[Cell, Trial]:
    cells = cells_at(reference.anatomy, layer, attention)
    length = reference.tokens.shape[1]
    return dict(zip(cells, make_trials(reference.anatomy, cells, layer, POSITION, length, lambda *_: 2.0), strict=True))


def hooked(reference: Reference, family: Family, trials: list[Trial], read: Read) -> Tensor:
    edits = [trial.edit(row) for row, trial in enumerate(trials)]
    rows = reference.tokens.expand(max(len(trials), 1), -1)
    is_frozen = bool(trials) and trials[0].attention == "frozen"
    (value,) = run_with_hooks(tiny(family), family, rows, edits, [read], frozen=is_frozen)
    return value


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("family", sampled(USUAL, "gemma2", "qwen3"))
def test_every_site_agrees_with_plain_hooks(family: Family, attention: Attention) -> None:
    reference = reference_of(family)
    allowance, length = Allowance.of_model(reference.model, reference.anatomy), reference.tokens.shape[1]
    read = Read("resid", at=range(length), layer=4)
    clean = hooked(reference, family, [], read)
    for layer in (LAYER, 4):
        trials = trials_at(reference, layer, attention)
        trials = {cell: trial for cell, trial in trials.items() if cell.site != "logits"}
        expected = hooked(reference, family, list(trials.values()), read)  # (trial, token, hidden)
        actual = reference.run(list(trials.values()))
        for row, cell in enumerate(trials):
            assert allowance.near(actual[row], expected[row]), (layer, str(cell))
            assert not allowance.near(actual[row], clean[0]), (layer, str(cell))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_logits_agree_with_plain_hooks(family: Family) -> None:
    reference = reference_of(family)
    allowance, read = Allowance.of_model(reference.model, reference.anatomy), Read("logits", at=range(40))
    (trial,) = (trial for cell, trial in trials_at(reference, 4, "live").items() if cell.site == "logits")
    expected = hooked(reference, family, [trial], read)
    assert allowance.near(reference.logits(trial)[:, :40], expected)
    assert not allowance.near(reference.logits(None)[:, :40], expected)


def test_sinks_take_a_share_of_their_own() -> None:
    scores, sinks = torch.tensor([[[[0.0, 0.0]], [[0.0, 0.0]]]]), torch.tensor([0.0, float("-inf")])
    expected = torch.tensor([[[[1 / 3, 1 / 3]], [[1 / 2, 1 / 2]]]])  # the first head has a sink of the same weight
    assert torch.allclose(softmax(scores, sinks), expected)


def test_every_cell_is_tried_at_some_layer() -> None:
    anatomy = reference_of("llama").anatomy
    tried = {cell for layer in (0, 4) for attention in ATTENTIONS for cell in cells_at(anatomy, layer, attention)}
    assert tried == set(CELLS)


ALLOWANCE = Allowance(depth=2, width=16)
BELOW = torch.finfo(torch.float32).min


def test_a_residual_is_compared_token_by_token_with_every_dimension_at_its_size() -> None:
    """Sizes are 1000 and 1; the second token differs by 0.01 in the small dimension, where both tokens have 1."""
    resid = torch.tensor([[[1000.0, 1.0], [1000.0, 1.0]]])
    deviation = Deviation.of_resid(ALLOWANCE, resid)
    actual = resid[0] + torch.tensor([[0.0, 0.0], [0.0, 0.01]])
    token, off = deviation.resids(actual, resid[0])
    assert token == 1
    assert off == pytest.approx(math.sqrt(0.01**2 / 2) / ALLOWANCE.relative, rel=1e-3)
    assert deviation.resids(resid[0], resid[0]) == (0, 0.0)


def test_a_dimension_near_zero_counts_as_a_share_of_the_whole() -> None:
    resid = torch.tensor([[[2.0, 0.0]]])
    assert torch.allclose(Deviation.of_resid(ALLOWANCE, resid).scale, torch.tensor([2.0, FLOOR * math.sqrt(2.0)]))


def test_infinite_and_missing_numbers_are_the_largest_deviation() -> None:
    deviation = Deviation(ALLOWANCE, torch.ones(1))
    for wrong in (math.nan, math.inf, 1e30):
        assert deviation.values(torch.tensor([[1.0], [wrong]]), torch.ones(2, 1)) == (1, LARGEST)
    assert deviation.values(torch.ones(1, 1), torch.zeros(1, 1)) == (0, LARGEST)  # nothing is allowed at zero
    assert deviation.values(torch.zeros(1, 1), torch.zeros(1, 1)) == (0, 0.0)


@pytest.mark.parametrize(
    ("row", "off"),
    [
        ([1.0, BELOW], 0.0),
        ([1.0, -math.inf], 0.0),
        ([1.0, 0.0], LARGEST),  # not masked
        ([BELOW, BELOW], LARGEST),  # masked where the other is not
        ([1.0 + ALLOWANCE.relative, BELOW], 1.0),
    ],
)
def test_masked_scores_have_to_be_masked_in_both(row: list[float], off: float) -> None:
    """One query, two keys, the second masked; the visible score is 1."""
    deviation = Deviation(ALLOWANCE, torch.ones(1))
    actual, expected = torch.tensor([[row]]), torch.tensor([[[1.0, BELOW]]])
    assert deviation.scores(actual, expected)[1] == pytest.approx(off, rel=2e-2)
