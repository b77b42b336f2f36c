"""What must hold for the torch surgeon whatever the model: replay is exact, and only what is edited changes.

Where two computations do the same sums in another order, float32 rounding is the only difference (`tests/close.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rebinding.surgery import Edit, NothingEdited, Read, TorchSurgeon, derive, in_layer
from rebinding.surgery.sites import SITES
from tests.close import MIN_CHANGE_SHARE, agree, allowance, is_changed
from tests.surgery.models import Family, tiny, tokens
from tests.surgery.small_edits import RECORDED_SITES, edit_at, logits, make_surgeon, place

EDITABLE = [site for site in SITES if site != "logits"]


def test_unedited_is_the_model(case: Any) -> None:
    """Nothing edited: the model's own eager forward, at every token."""
    surgeon, prompts, recording = case
    model = surgeon.model
    with torch.no_grad():
        actual = model(prompts, use_cache=False).logits
        model.set_attn_implementation("eager")
        try:
            expected = model(prompts, use_cache=False).logits
        finally:
            TorchSurgeon(model, surgeon.anatomy)
    assert agree(actual, expected)
    assert agree(logits(surgeon, recording, [], range(prompts.shape[1])), expected)


@pytest.mark.parametrize("site", RECORDED_SITES)
def test_clean_into_clean_is_the_identity(case: Any, site: Any) -> None:
    """Writing what is there changes nothing, is recognised as such, and is refused unless asked for."""
    surgeon, prompts, recording = case
    layer, heads = 2, None if site in ("resid", "mlp_out") else [0, 1]
    everywhere = range(prompts.shape[1])
    (values,) = surgeon.run(recording, [], [Read(site, at=everywhere, **place(site, layer, heads))])
    edit = Edit(site, values, at=everywhere, **place(site, layer, heads))
    with pytest.raises(NothingEdited):
        logits(surgeon, recording, [edit], [-1 + prompts.shape[1]])
    noop = logits(surgeon, recording, [edit], everywhere, allow_noop=True)
    assert torch.equal(noop, logits(surgeon, recording, [], everywhere))
    empty_recording = surgeon.record(prompts)  # keeps less, so the surgeon cannot know and has to compute
    with pytest.raises(NothingEdited):
        logits(surgeon, empty_recording, [edit], everywhere)
    assert agree(logits(surgeon, empty_recording, [edit], everywhere, allow_noop=True), noop)


@pytest.mark.parametrize("site", EDITABLE)
def test_replay_is_the_full_forward(case: Any, site: Any) -> None:
    """From every layer and position: the replayed suffix equals the run from the first token of layer 0."""
    surgeon, prompts, recording = case
    length = prompts.shape[1]
    empty_recording = surgeon.record(prompts)
    reads = [Read("mlp_out", at=[0], layer=0), Read("logits", at=range(length))]  # not kept: start at the start
    clean = logits(surgeon, recording, [], range(length))
    for layer in range(surgeon.anatomy.n_layers):
        for position in (3, 7, length - 1):
            edit = edit_at(surgeon, site, layer, position, length)
            _, full = surgeon.run(empty_recording, [edit], reads)
            suffix = logits(surgeon, recording, [edit], range(position, length))
            assert agree(suffix, full[:, position:]), (layer, position)
            assert agree(full[:, :position], clean[:, :position]), "an edit reached an earlier token"
            assert is_changed(suffix, clean[:, position:]) or (site in ("k_rot", "k", "v", "v_seen") and layer == 3), (
                f"{site} at layer {layer}, token {position} was not felt"
            )


def test_edit_leaves_lower_layers_and_earlier_tokens(case: Any) -> None:
    """The residual below the edited layer, and before the edited token, is the recorded one."""
    surgeon, prompts, recording = case
    length, layer, position = prompts.shape[1], 2, 5
    empty_recording = surgeon.record(prompts)
    edit = edit_at(surgeon, "z", layer, position, length)
    reads = [Read("resid", at=range(length), layer=at) for at in range(surgeon.anatomy.n_layers + 1)]
    reads.append(Read("mlp_out", at=[0], layer=0))
    for at, actual in enumerate(surgeon.run(empty_recording, [edit], reads)[:-1]):
        clean = recording.sites["resid"][at]
        unchanged = actual if at <= layer else actual[:, :position]
        assert agree(unchanged, clean[:, : unchanged.shape[1]])
        if at > layer:
            assert is_changed(actual[:, position], clean[:, position])


def test_rows_batches_and_order_do_not_matter(case: Any) -> None:
    """Rows of other heads, layers and positions, in one batch, in pieces, one by one, and in another order."""
    surgeon, prompts, recording = case
    length, anatomy = prompts.shape[1], surgeon.anatomy
    places = {layer: (4, 8) if layer < 3 else (8, length - 1) for layer in range(4)}
    rows = [(layer, head, place) for layer in range(4) for head in range(anatomy.n_heads) for place in places[layer]]
    dice = torch.Generator().manual_seed(0)
    values = torch.randn(len(rows), 1, 1, anatomy.parts[0].head_dim, generator=dice)

    def run(order: list[int], **options: Any) -> torch.Tensor:
        edits = []
        for layer in range(4):
            members = [at for at, number in enumerate(order) if rows[number][0] == layer]
            if members:
                numbers = [order[at] for at in members]
                heads = [[rows[number][1]] for number in numbers]
                positions = [[rows[number][2]] for number in numbers]
                edits.append(Edit("z", values[numbers], at=positions, head=in_layer(layer, heads), rows=members))
        source = torch.tensor([number % prompts.shape[0] for number in order])
        variant = TorchSurgeon(surgeon.model, anatomy, **options)
        return logits(variant, recording, edits, [8, length - 1], source=source)

    full = run(list(range(len(rows))))
    assert agree(run(list(range(len(rows))), rows=5), full)
    permutation = torch.randperm(len(rows), generator=dice).tolist()
    assert agree(run(permutation), full[permutation])
    for number in (0, 17, 47):
        assert agree(run([number]), full[[number]])


def test_out_of_memory_halves_the_batch(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that does not fit is halved until it does, with the same results."""
    surgeon, prompts, recording = case
    edit = edit_at(surgeon, "z", 1, 4, prompts.shape[1])
    source = torch.arange(8) % prompts.shape[0]
    full = logits(surgeon, recording, [edit], [prompts.shape[1] - 1], source=source)
    sizes: list[int] = []
    run_batch = TorchSurgeon._run_batch

    def tight(self: TorchSurgeon, batch: Any, *rest: Any) -> None:
        sizes.append(batch.rows.numel())
        if batch.rows.numel() > 3:
            raise torch.OutOfMemoryError("pretend")
        run_batch(self, batch, *rest)

    monkeypatch.setattr(TorchSurgeon, "_run_batch", tight)
    assert agree(logits(surgeon, recording, [edit], [prompts.shape[1] - 1], source=source), full)
    assert sizes == [8, 4, 2, 2, 4, 2, 2]


@pytest.mark.parametrize("site", ["k", "v"])
def test_all_heads_of_a_group_are_the_group(case: Any, site: Any) -> None:
    """Editing what every query head of a group sees is editing the group; fewer heads is something else."""
    surgeon, prompts, recording = case
    anatomy, length = surgeon.anatomy, prompts.shape[1]
    value = torch.randn(anatomy.parts[0].head_dim, generator=torch.Generator().manual_seed(1)) * 2
    common: dict[str, Any] = {"at": [5], "mode": "add"}
    group = logits(surgeon, recording, [Edit(site, value, head=[(1, 1)], scope="group", **common)], [length - 1])
    members = range(anatomy.parts[0].group, 2 * anatomy.parts[0].group)
    heads = logits(
        surgeon, recording, [Edit(site, value, head=in_layer(1, members), scope="head", **common)], [length - 1]
    )
    fewer = logits(
        surgeon, recording, [Edit(site, value, head=in_layer(1, members[:1]), scope="head", **common)], [length - 1]
    )
    assert agree(heads, group)
    assert is_changed(fewer, group)


def test_grouped_heads_are_repeated_weights() -> None:
    """A model with shared KV heads equals the one in which every query head has its own copy of the weights."""
    grouped = make_surgeon("llama")
    anatomy = grouped.anatomy
    ungrouped = tiny("llama", num_key_value_heads=anatomy.n_heads)
    state = dict(grouped.model.state_dict())
    for name in [name for name in state if "k_proj" in name or "v_proj" in name]:
        state[name] = (
            state[name]
            .unflatten(0, (-1, anatomy.parts[0].head_dim))
            .repeat_interleave(anatomy.parts[0].group, 0)
            .flatten(0, 1)
        )
    ungrouped.load_state_dict(state)
    own_surgeon = TorchSurgeon(ungrouped, derive(ungrouped))
    prompts = tokens("llama")
    value = torch.ones(anatomy.parts[0].head_dim)
    for site in ("k", "v"):
        head_edit = Edit(site, value, at=[4], head=[(2, 4)], mode="add", scope="head")
        group_edit = Edit(site, value, at=[4], head=[(2, 4)], mode="add", scope="group")
        last = [prompts.shape[1] - 1]
        actual = logits(grouped, grouped.record(prompts), [head_edit], last)
        assert agree(actual, logits(own_surgeon, own_surgeon.record(prompts), [group_edit], last))


@pytest.mark.parametrize(("family", "additive"), [("llama", True), ("gemma2", False), ("gemma3", False)])
def test_heads_add_up_only_without_post_norms(family: Family, additive: bool) -> None:
    """Removing two heads is the sum of removing each in Llama; Gemma's post-norm sees their sum. We rely on neither."""
    surgeon, prompts = make_surgeon(family), tokens(family)
    recording = surgeon.record(prompts)
    last, empty = prompts.shape[1] - 1, torch.zeros(surgeon.anatomy.parts[0].head_dim)

    def middle(heads: list[int]) -> torch.Tensor:
        edit = Edit("z", empty, at=[last], head=in_layer(3, heads))
        mlp = Edit("mlp_out", torch.zeros(surgeon.anatomy.hidden), at=[last], layer=3)
        return surgeon.run(recording, [edit, mlp], [Read("resid", at=[last], layer=4)])[0]

    clean = surgeon.run(
        recording,
        [Edit("mlp_out", torch.zeros(surgeon.anatomy.hidden), at=[last], layer=3)],
        [Read("resid", at=[last], layer=4)],
    )[0]
    joint = middle([0, 1]) - clean
    summed = (middle([0]) - clean) + (middle([1]) - clean)
    gap = float((joint - summed).abs().max())
    assert gap <= allowance(clean) if additive else gap > MIN_CHANGE_SHARE * allowance(clean)


def test_frozen_short_cut_is_the_long_way(case: Any) -> None:
    """Frozen runs that compute a few tokens equal frozen runs of whole layers, and differ from live ones."""
    from dataclasses import replace

    surgeon, prompts, recording = case
    long_way = TorchSurgeon(surgeon.model, replace(surgeon.anatomy, branches=None))
    for layer in range(surgeon.anatomy.n_layers):
        edits = [edit_at(surgeon, "z", layer, 6, prompts.shape[1]), edit_at(surgeon, "mlp_out", 1, 6, prompts.shape[1])]
        short = logits(surgeon, recording, edits, [6], attention="frozen")
        assert agree(short, logits(long_way, recording, edits, [6], attention="frozen"))
        if layer < surgeon.anatomy.n_layers - 1:
            assert is_changed(short, logits(surgeon, recording, edits, [6]))


def test_bfloat16_on_the_same_path(case: Any) -> None:
    """In bf16 a replay rounds like a full forward: within 16 units in the last place, with the same best token.

    The bound is that of two bf16 runs that differ in the order of sums, measured on these models (below 8) and doubled;
    the best token may differ only where its lead is smaller than that.
    """
    surgeon, prompts, _ = case
    model = tiny("gemma2" if surgeon.anatomy.logit_softcap else "llama").to(torch.bfloat16)
    half = TorchSurgeon(model, derive(model))
    recording, length = half.record(prompts), prompts.shape[1]
    bound = 16 * torch.finfo(torch.bfloat16).eps
    for layer in range(half.anatomy.n_layers):
        edit = edit_at(half, "z", layer, 6 if layer < half.anatomy.n_layers - 1 else length - 1, length)
        actual = logits(half, recording, [edit], [length - 1]).float()
        reads = [Read("mlp_out", at=[0], layer=0), Read("logits", at=[length - 1])]
        expected = half.run(recording, [edit], reads)[1].float()
        slack = bound * float(expected.abs().max())
        assert float((actual - expected).abs().max()) <= slack
        best = expected.topk(2).values
        clear = best[..., 0] - best[..., 1] > 2 * slack
        assert torch.equal(actual.argmax(-1)[clear], expected.argmax(-1)[clear])
