"""Edits and reads by name, compared with plain hooks on the library's own model."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rebinding import Edit, NothingEdited, Read
from rebinding.surgery import SurgeryError
from tests.api.small import HEAD_DIM, changed_z, logits_of, model_of, prompts_of, z_of
from tests.everyday import sampled

TOLERANCE = 1e-5
"""Weights are float64, but norms, softmaxes and rotations of the library are float32 inside: a few units of 1.2e-7 of
values up to ten."""

READ = Read("logits")


def close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual.double(), expected.double(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("family", sampled(("llama", "gemma2", "qwen3"), "llama"))
def test_edit_at_named_positions_equals_a_hook(family: str) -> None:
    """Two heads of different layers get the values of other prompts, at a position that differs between prompts."""
    model = model_of(family)
    clean, noise = prompts_of(model, family), prompts_of(model, family, first=2)
    raw, noise_z = model.loaded.model, z_of(model.loaded.model, noise.tokens)
    rows, at = torch.arange(2), torch.tensor([6, 7])

    def write(z: Tensor, *, layer: int, head: int) -> Tensor:
        z[rows, at, head] = noise_z[layer][rows, at, head]
        return z

    with changed_z(raw, {2: partial(write, layer=2, head=5), 0: partial(write, layer=0, head=1)}):
        expected = logits_of(raw, clean.tokens)
    edit = Edit("z", model.record(noise), at="middle", head=[(2, 5), (0, 1)])
    recording = model.record(clean)
    (actual,) = recording.run(edit, Read("logits"))
    assert close(actual, expected)
    assert not close(actual, logits_of(raw, clean.tokens))
    (answers,) = recording.run(edit, Read("answers"))
    assert close(answers, actual.gather(1, clean.answers))


def test_reads_keep_the_order_of_heads_and_positions() -> None:
    model = model_of()
    prompts = prompts_of(model)
    z = z_of(model.loaded.model, prompts.tokens)
    heads = [(2, 4), (0, 3), (2, 1)]
    recording = model.record(prompts)
    several, single, no_head_axis = recording.read(
        Read("z", head=heads, at=["readout", 3]),
        Read("z", head=(0, 3), at="early"),
        Read("z", head=[(0, 3)], at="early"),
    )
    assert several.shape == (2, 3, 2, HEAD_DIM)
    assert single.shape == (2, HEAD_DIM)
    assert no_head_axis.shape == (2, 1, HEAD_DIM)
    for place, (layer, head) in enumerate(heads):
        assert close(several[:, place], z[layer][:, [12, 3], head])
    assert close(single, z[0][:, 3, 3])


def test_a_value_with_heads_follows_their_order() -> None:
    """A tensor in the shape of a read is in the order of the heads, whatever their layers."""
    model = model_of()
    prompts = prompts_of(model)
    heads = [(2, 4), (0, 3), (2, 1)]
    value = torch.randn(2, 3, HEAD_DIM, generator=torch.Generator().manual_seed(0)).double()
    recording = model.record(prompts)
    reads = [Read("z", head=head, at="early") for head in heads]
    results = recording.run(Edit("z", value, at="early", head=heads), *reads)
    for place, result in enumerate(results):
        assert close(result, value[:, place])


def test_a_batch_equals_single_runs() -> None:
    """The entries of `run_each` do not see each other; an entry may have several edits."""
    model = model_of("gemma2")
    prompts = prompts_of(model, "gemma2")
    recording = model.record(prompts)
    entries = [
        Edit("z", 0.0, at="middle", head=(1, 2)),
        [Edit("resid", 0.5, at=[2, "readout"], layer=2, mode="add"), Edit("z", 1.0, at="early", head=(0, 0))],
        Edit("k", 0.0, at="early", head=(2, 1), scope="group"),
        Edit("v", 2.0, at="early", head=(2, 5), scope="head"),
    ]
    logits, resid = recording.run_each(entries, Read("logits"), Read("resid", layer=4, at="readout"))
    assert logits.shape[:2] == resid.shape[:2] == (4, 2)
    for number, entry in enumerate(entries):
        alone, own_resid = recording.run(entry, Read("logits"), Read("resid", layer=4, at="readout"))
        assert close(logits[number], alone)
        assert close(resid[number], own_resid)
        assert not close(alone, recording.read(Read("logits"))[0])


def test_keys_of_one_query_head_come_from_its_kv_head() -> None:
    """With `scope="head"` a value from a recording is that of the head's KV head; two heads of one group may share
    it, and both together with the third are the group."""
    model = model_of()
    clean, noise = prompts_of(model), prompts_of(model, first=2)
    recording, other = model.record(clean), model.record(noise)
    group = Edit("k", other, at="early", head=(1, 1), scope="group")
    heads = Edit("k", other, at="early", head=[(1, 3), (1, 4), (1, 5)], scope="head")
    (of_group,), (of_heads,) = recording.run(group, Read("logits")), recording.run(heads, Read("logits"))
    assert close(of_group, of_heads)
    (of_two,) = recording.run(Edit("k", other, at="early", head=[(1, 3), (1, 4)], scope="head"), Read("logits"))
    assert not close(of_two, of_group)


def test_frozen_attention_is_the_textbook_path() -> None:
    """One head is set, every other head keeps its z: compared with hooks on all layers."""
    model = model_of()
    clean = prompts_of(model)
    raw, clean_z = model.loaded.model, z_of(model.loaded.model, clean.tokens)

    def freeze(z: Tensor, *, layer: int) -> Tensor:
        z = clean_z[layer].clone()
        if layer == 1:
            z[:, 12, 2] = 0.0
        return z

    with changed_z(raw, {layer: partial(freeze, layer=layer) for layer in range(4)}):
        expected = logits_of(raw, clean.tokens)
    edit = Edit("z", 0.0, at="readout", head=(1, 2))
    recording = model.record(clean)
    (actual,), (live,) = recording.run(edit, Read("logits"), attention="frozen"), recording.run(edit, Read("logits"))
    assert close(actual, expected)
    assert not close(actual, live)


def test_an_edit_that_changes_nothing_is_refused() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    same = Edit("z", recording, at="early", head=(1, 2))
    with pytest.raises(NothingEdited, match="change nothing"):
        recording.run(same, Read("logits"))
    late = Edit("z", 0.0, at="readout", head=(1, 2))
    with pytest.raises(NothingEdited, match="change nothing"):
        recording.run(late, Read("resid", layer=1, at="readout"))  # below the edit
    (actual,) = recording.run(same, Read("logits"), allow_noop=True)
    assert close(actual, recording.read(Read("logits"))[0])


def test_errors_say_what_to_do() -> None:
    model, other = model_of(), model_of()
    recording = model.record(prompts_of(model))
    reads = Read("logits")
    for make, message in (
        (
            lambda: Edit("z", 0.0, at="early", head=(4, 0)),
            "no head \\(4, 0\\): the model has layers 0 to 3 and query heads 0 to 5",
        ),
        (lambda: Edit("k", 0.0, at="early", head=(0, 2), scope="group"), "KV heads 0 to 1"),
        (lambda: Edit("z", torch.zeros(2, 3, 1, HEAD_DIM), at="early", head=(0, 0)), r"takes \(row, width\)"),
        (lambda: Edit("z", "0", at="early", head=(0, 0)), "value must be a number or a tensor.*got a str"),
        (lambda: Edit("z", 0.0, at=[], head=(0, 0)), "at is an empty list"),
        (lambda: Edit("z", 0.0, at=1.5, head=(0, 0)), "positions must be integers.*got 1.5"),
        (lambda: Edit("resid", 0.0, at=1, layer="2"), "layer must be an integer"),
        (lambda: Edit("z", 0.0, at="late", head=(0, 0)), "no position 'late'. Every prompt has early, middle, readout"),
        (lambda: Edit("z", 0.0, at=13, head=(0, 0)), "position 13: these prompts have tokens 0 to 12"),
        (lambda: Edit("resid", 0.0, at=1, layer=5), "no layer 5: 'resid' has layers 0 to 4"),
        (lambda: Edit("mlp_out", 0.0, at=1, layer=4), "no layer 4: 'mlp_out' has layers 0 to 3"),
        (lambda: Edit("z", other.record(prompts_of(other)), at=1, head=(0, 0)), "another loaded copy of tiny llama"),
        (lambda: Edit("z", model.record(prompts_of(model, n=1)), at=1, head=(0, 0)), "1 prompts, and the run has 2"),
    ):
        with pytest.raises(ValueError, match=message):
            recording.run(make(), reads)
    for site, place, message in (
        ("z", {"layer": 1}, "per head"),
        ("resid", {"head": (1, 1)}, "has no heads: give layer"),
        ("answers", {}, "unknown site"),
        ("k", {"head": (0, 0)}, "scope='group' .* or scope='head'"),
        ("zz", {"head": (0, 0)}, "unknown site 'zz'"),
    ):
        with pytest.raises(SurgeryError, match=message):
            Edit(site, 0.0, at=1, **place)
    with pytest.raises(SurgeryError, match="leave head and layer out"):
        Read("answers", layer=3)
    for head in (3, [], "ab", [(1, 2, 3)], (1.5, 2)):
        with pytest.raises(SurgeryError, match="must be \\(layer, head\\)"):
            recording.read(Read("z", head=head))
    for call, message in (
        (lambda: recording.run_each(Edit("z", 0.0, at=1, head=(0, 0)), reads), "run takes one edit"),
        (lambda: recording.read("answers"), r"expected Read\("),
        (lambda: model.record(model.prompts([[5, 6, 7]]).tokens), "record takes Prompts"),
        (
            lambda: model.record(prompts_of(model), keep=()).run(
                Edit("z", 0.0, at=1, head=(0, 0)), reads, attention="frozen"
            ),
            "keep=\\('z',\\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(ValueError, match="have no answers"):
        model.record(model.prompts([[5, 6, 7]])).read(Read("answers"))


@pytest.mark.parametrize("site", ["z", "pattern"])
def test_rows_are_the_prompts_that_are_edited(site: Any) -> None:
    """The other prompt runs unedited; positions and values are those of the prompts that are named."""
    model = model_of()
    recording, noise = model.record(prompts_of(model)), model.record(prompts_of(model, first=2))
    value = noise if site == "z" else 0.25
    (clean,), (both,) = recording.read(READ), recording.run(Edit(site, value, at="middle", head=(1, 5)), READ)
    for row in (0, 1):
        (edited,) = recording.run(Edit(site, value, at="middle", head=(1, 5), rows=[row]), READ)
        assert close(edited[row], both[row])
        assert close(edited[1 - row], clean[1 - row])
        assert not close(both[row], clean[row])


def test_masks_and_tables_say_where_each_prompt_is_edited() -> None:
    """Early in one prompt and at the middle of the other, other heads: as two edits, a masked one, and by tables."""
    model = model_of()
    recording = model.record(prompts_of(model))
    first, second = (Edit("z", 0.0, at=at, head=(2, 5), rows=[row]) for row, at in enumerate(("early", "middle")))
    (expected,) = recording.run([first, second], READ)
    mask = torch.tensor([[True, False], [False, True]])  # (prompt, position)
    (masked,) = recording.run(Edit("z", 0.0, at=["early", "middle"], head=(2, 5), where=mask), READ)
    (by_table,) = recording.run(Edit("z", 0.0, at=torch.tensor([[3], [7]]), head=[(2, 5)]), READ)
    assert close(masked, expected)
    assert close(by_table, expected)
    assert not close(recording.run(first, READ, allow_noop=True)[0][1], expected[1])
    heads = torch.tensor([[[2, 5]], [[2, 1]]])  # (prompt, head, 2)
    (by_heads,) = recording.run(Edit("z", 0.0, at=["early"], head=heads), READ)
    others = [Edit("z", 0.0, at="early", head=(2, head), rows=[row]) for row, head in enumerate((5, 1))]
    assert close(by_heads, recording.run(others, READ)[0])
    assert not close(by_heads[1], recording.run(Edit("z", 0.0, at="early", head=(2, 5)), READ)[0][1])
    with pytest.raises(SurgeryError, match="two edits of one run write 'z'"):
        recording.run([first, Edit("z", 1.0, at="early", head=(2, 5), rows=[0])], READ)


def test_logits_are_reduced_and_edited() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    (logits,) = recording.read(READ)
    (reduced,) = recording.read(Read("logits", reduce=lambda values, rows: values[:, 0, :2] + rows[:, None]))
    assert close(reduced, logits[:, :2] + torch.arange(2)[:, None])
    raised, answers = recording.run(Edit("logits", 3.0, at="readout", mode="add"), READ, Read("answers"))
    assert close(raised, logits + 3)
    assert close(answers, raised.gather(1, recording.prompts.candidates()))


def test_two_edits_of_one_place_are_refused() -> None:
    """The outcome would depend on their order; in two entries, or at two positions, they are fine."""
    model = model_of()
    recording = model.record(prompts_of(model))
    first, second = (Edit("z", value, at=at, head=(0, 1)) for value, at in ((1.0, "early"), (2.0, [3, "readout"])))
    with pytest.raises(SurgeryError, match="depend on"):
        recording.run([first, second], Read("logits"))
    group, head = (
        Edit("k", 1.0, at="middle", head=(0, place), scope=scope) for place, scope in ((1, "group"), (4, "head"))
    )
    with pytest.raises(SurgeryError, match="depend on"):
        recording.run([group, head], Read("logits"))  # query head 4 sees KV head 1
    recording.run([group, Edit("k", 2.0, at="middle", head=(0, 2), scope="head")], Read("logits"))
    recording.run_each([first, second], Read("logits"))
    recording.run([first, Edit("z", 2.0, at="readout", head=(0, 1))], Read("logits"))


def test_a_read_can_be_written_back() -> None:
    """What a read returns is a value of an edit with the same head and position: a no-op, at every kind of site."""
    model = model_of()
    recording = model.record(prompts_of(model))
    for site, place in (
        ("z", {"head": (1, 4)}),
        ("z", {"head": [(1, 4), (0, 2)]}),
        ("k", {"head": (1, 4), "scope": "head"}),
        ("k", {"head": [(1, 4), (1, 3)], "scope": "head"}),
        ("v", {"head": (1, 1), "scope": "group"}),
        ("resid", {"layer": 2}),
    ):
        for at in ("middle", ["middle", 2]):
            (value,) = recording.read(Read(site, at=at, **place))
            with pytest.raises(NothingEdited):
                recording.run(Edit(site, value, at=at, **place), Read("logits"))
            recording.run(Edit(site, value + 1, at=at, **place), Read("logits"))


def test_integers_of_other_libraries_are_integers() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    plain = recording.read(Read("z", head=(1, 4), at=-1))[0]
    (other,) = recording.read(Read("z", head=(np.int64(1), torch.tensor(4)), at=np.int64(-1)))
    assert torch.equal(plain, other)
    assert recording.read(Read("resid", layer=np.int64(2), at=torch.tensor(3)))[0].shape == (2, 24)


def test_a_recording_is_of_the_model_as_it_is() -> None:
    """No recording is served from before a change of weights."""
    model = model_of()
    prompts = prompts_of(model)
    (before,) = model.record(prompts).read(Read("logits"))
    model.loaded.model.get_submodule("model.layers.1.self_attn.o_proj").weight.data.zero_()
    recording = model.record(prompts)
    (after,) = recording.read(Read("logits"))
    assert not close(before, after)
    assert close(after, logits_of(model.loaded.model, prompts.tokens))
    assert len(repr(recording)) < 300
    assert len(repr(Edit("z", recording, at=1, head=(0, 0)))) < 400


def project_out(z: Tensor) -> Tensor:
    """Without the part along (1, 1, ..., 1)."""
    return z - z.mean(dim=-1, keepdim=True)


@pytest.mark.parametrize("function", [lambda z: 2 * z, project_out], ids=["scaled", "projected"])
def test_a_function_of_the_unedited_values_equals_a_hook(function: Any) -> None:
    """One head at every token: the hook has the same function on the library's own values."""
    model = model_of()
    prompts, raw = prompts_of(model), model.loaded.model

    def write(z: Tensor) -> Tensor:
        z[:, :, 4] = function(z[:, :, 4])
        return z

    with changed_z(raw, {1: write}):
        expected = logits_of(raw, prompts.tokens)
    (actual,) = model.record(prompts).run(Edit("z", function, at=range(prompts.length), head=(1, 4)), READ)
    assert close(actual, expected)
    assert not close(actual, logits_of(raw, prompts.tokens))


def test_a_function_returns_values_of_the_same_shape_and_stands_alone() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    edit = Edit("z", lambda z: z[..., :3], at="early", head=(1, 4))
    with pytest.raises(SurgeryError, match=r"returns a tensor of the same shape; got \(2, 1, 1, 3\)"):
        recording.run(edit, READ)
    with pytest.raises(SurgeryError, match="the value has NaN"):
        recording.run(Edit("z", lambda z: z / 0, at="early", head=(1, 4)), READ)
    with pytest.raises(NothingEdited):
        recording.run(Edit("z", lambda z: z, at="early", head=(1, 4)), READ)
    both = [Edit("z", 0.0, at="early", head=(0, 1)), Edit("z", lambda z: 2 * z, at="early", head=(1, 4))]
    with pytest.raises(SurgeryError, match="by a function stands beside other edits"):
        recording.run(both, READ)
