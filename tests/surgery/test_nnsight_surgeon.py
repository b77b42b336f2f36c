"""The nnsight surgeon's own promises: its names reach the model, and it leaves the model as it found it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from rebinding.models.reference import Cell
from rebinding.surgery import attention as registered
from rebinding.surgery import nnsight_sites
from rebinding.surgery.derivation import derive
from rebinding.surgery.nnsight_sites import ATTENTION_CALL, IN_ATTENTION, ROTATION_CALL
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.recording import RecordedRun
from rebinding.surgery.sites import Attention, Edit, NothingEdited, Read, Site
from rebinding.surgery.torch_surgeon import TorchSurgeon
from tests.close import agree, is_changed
from tests.families.engines import make_batch
from tests.families.models import Family, RandomModel, tiny, tokens

LAST = Read("logits", at=[12])
PROMPTS = RandomModel("gemma3")


def prepared(family: Family) -> tuple[PreTrainedModel, NNsightSurgeon, RecordedRun]:
    """A model, its surgeon and a recording of three prompts."""
    model = tiny(family)
    surgeon = NNsightSurgeon(model, derive(model))
    return model, surgeon, surgeon.record(tokens(family), keep={"z"})


def plain(model: PreTrainedModel, prompts: Tensor) -> Tensor:
    """Logits of the model itself."""
    with torch.no_grad():
        logits: Tensor = model(prompts, use_cache=False).logits
    return logits


def noise(*shape: int) -> Tensor:
    """Random values, the same every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("cell", "rows"),
    [
        *((cell, 7) for cell in (Cell("resid"), Cell("k", "head"), Cell("pattern"), Cell("z", attention="frozen"))),
        (Cell("v", "group"), 1),
    ],
    ids=str,
)
def test_a_run_in_several_traces_is_the_run(cell: Cell, rows: int) -> None:
    """Lines of values, places and masks go with their rows, of which no edit names all."""
    model, full, _ = prepared("gemma3")
    parts = NNsightSurgeon(model, full.anatomy, rows=rows)
    batch, recording = make_batch("gemma3", cell, is_windowed=True), full.record(PROMPTS.prompts, keep={"z"})

    def run(surgeon: NNsightSurgeon, edits: Sequence[Edit]) -> list[Tensor]:
        return surgeon.run(recording, edits, batch.reads, source=batch.source, attention=cell.attention)

    expected = run(full, batch.edits)
    assert all(agree(a, b) for a, b in zip(run(parts, batch.edits), expected, strict=True))
    assert is_changed(expected[-1], run(full, [])[-1])


def test_noop_is_judged_over_the_run_and_not_in_each_trace() -> None:
    model, _, recording = prepared("llama")
    parts = NNsightSurgeon(model, derive(model), rows=1)
    edit = Edit("resid", noise(1, 1, 24), at=[3], layer=1, rows=[1], mode="add")
    noop = Edit("resid", torch.zeros(24), at=[3], layer=1, rows=[1], mode="add")
    (changed,) = parts.run(recording, [edit], [LAST])
    (clean,) = parts.run(recording, [], [LAST])
    assert agree(changed[[0, 2]], clean[[0, 2]])
    assert is_changed(changed[1], clean[1])
    with pytest.raises(NothingEdited):
        parts.run(recording, [noop], [LAST])


def test_the_names_are_those_of_this_release() -> None:
    """A release that renames an operation is told apart from one that computes something else."""
    model = tiny("gemma2")
    surgeon = NNsightSurgeon(model, derive(model))
    names = surgeon.model.model.layers[0].self_attn.source.names
    assert {ATTENTION_CALL, ROTATION_CALL} <= set(names)
    assert set(nnsight_sites.ORDER) == {"resid", "q", "k", "v", "z", "resid_mid", "mlp_out", *IN_ATTENTION}


@pytest.mark.parametrize("family", ["llama", "gemma3_multimodal"])
def test_run_without_edits_is_the_model(family: Family) -> None:
    """Without edits the logits are the model's own, bit for bit."""
    model, surgeon, recording = prepared(family)
    (logits,) = surgeon.run(recording, [], [Read("logits", at=range(13))])
    assert torch.equal(logits, plain(tiny(family), recording.tokens))
    assert torch.equal(logits, plain(model, recording.tokens))


@pytest.mark.parametrize("implementation", ["sdpa", registered.NAME])
def test_traces_always_run_on_eager_attention(implementation: str) -> None:
    """The model's attention is swapped during a trace only, also if the trace fails."""
    model, surgeon, recording = prepared("gemma3_multimodal")
    reads = [Read("pattern", at=[5, 12], head=[(2, 0), (2, 3)]), LAST]
    expected = surgeon.run(recording, [], reads)
    registered.register()
    model.set_attn_implementation({"text_config": implementation})
    assert all(torch.equal(a, b) for a, b in zip(surgeon.run(recording, [], reads), expected, strict=True))
    broken = NNsightSurgeon(model, replace(surgeon.anatomy, layers="model.language_model.nowhere"))
    with pytest.raises(AttributeError, match="nowhere"):
        broken.run(recording, [], [Read("resid", at=[12], layer=4)])
    assert model.config.get_text_config()._attn_implementation == implementation


def test_the_registered_function_takes_no_part_in_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """An independent check must not run the code that it checks."""
    model, surgeon, recording = prepared("llama")
    registered.install(model)
    monkeypatch.setitem(AttentionInterface._global_mapping, registered.NAME, None)
    with pytest.raises(TypeError):
        plain(model, recording.tokens)
    assert surgeon.run(recording, [], [LAST])[0].isfinite().all()


@pytest.mark.parametrize("attention", ["live", "frozen"])
def test_a_run_leaves_model_recording_and_values_alone(attention: Attention) -> None:
    """Nothing is edited in place: not the weights, not what was recorded, not the value of an edit."""
    model, surgeon, recording = prepared("qwen3")
    before = plain(model, recording.tokens)
    z = [layer.clone() for layer in recording.sites["z"]]
    value = noise(3, 1, 10)
    edits = [
        Edit("z", value, at=[7], head=[(1, 0), (1, 1), (1, 5)]),
        Edit("z", value, at=[7], head=[(1, 3), (1, 1), (1, 5)], mode="add"),
    ]
    surgeon.run(recording, edits, [Read("logits", at=[7, 12])], attention=attention)
    assert torch.equal(value, noise(3, 1, 10))
    assert all(torch.equal(a, b) for a, b in zip(z, recording.sites["z"], strict=True))
    assert torch.equal(plain(model, recording.tokens), before)


def test_edits_of_one_place_act_in_the_order_of_the_list() -> None:
    """Set then add is the sum; add then set is what was set."""
    _, surgeon, recording = prepared("mistral")
    put = Edit("q", noise(10), at=[9], head=[(1, 2)])
    second_edit = Edit("q", torch.ones(10), at=[9], head=[(1, 2)], mode="add")
    read = Read("q", at=[9], head=[(1, 2), (1, 3)])
    (set_then_add,), (add_then_set,) = (
        surgeon.run(recording, edits, [read]) for edits in ([put, second_edit], [second_edit, put])
    )
    (clean,) = surgeon.run(recording, [], [read])
    assert torch.equal(set_then_add[:, 0, 0], (noise(10) + 1).expand(3, 10))
    assert torch.equal(add_then_set[:, 0, 0], noise(10).expand(3, 10))
    assert torch.equal(set_then_add[:, 1], clean[:, 1])


def test_rows_name_their_prompts_and_take_sees_the_rows() -> None:
    """Row r is prompt source[r]; `reduce` gets whole rows with their numbers, and what it returns is returned."""
    _, surgeon, recording = prepared("llama")
    source = torch.tensor([2, 0, 0, 1])
    recorded_values: list[Tensor] = []

    def largest(values: Tensor, rows: Tensor) -> Tensor:
        recorded_values.append(rows)
        return values.amax(dim=-1)

    actual = surgeon.run(recording, [], [Read("logits", at=[12, 3], reduce=largest)], source=source)[0]
    expected = plain(tiny("llama"), recording.tokens[source])[:, [12, 3]].amax(dim=-1)
    assert agree(actual, expected)
    assert torch.cat(recorded_values).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "site", ["resid", "q", "k", "v", "q_rot", "k_rot", "v_seen", "pattern", "resid_mid", "mlp_out"]
)
def test_a_recording_keeps_every_layer_of_a_site(site: Site) -> None:
    """What is kept is what the torch surgeon keeps, where it keeps that site under that name."""
    model, surgeon, _ = prepared("gemma2")
    actual = surgeon.record(tokens("gemma2"), keep={site}).sites[site]
    assert len(actual) == (5 if site == "resid" else 4)
    if site in ("k_rot", "v_seen"):
        assert actual[0].shape == (3, 6, 13, 10)
        return
    expected = TorchSurgeon(model, derive(model)).record(tokens("gemma2"), keep={site}).sites[site]
    assert all(agree(a, b) for a, b in zip(actual, expected, strict=True))
