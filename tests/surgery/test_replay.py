"""What a run leaves out or cuts into parts changes no number: unread tokens, held heads, batches that do not fit.

That a replay is the full forward is compared with plain hooks (`tests/families/test_edits.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from rebinding.experiments.ablation import ablation_edits
from rebinding.surgery import ActiveHeads, Edit, Read, RecordedRun, TorchSurgeon, derive, in_layer, replay
from rebinding.surgery.memory import in_parts
from tests.close import agree, is_changed
from tests.families.models import Family, tiny, tokens
from tests.models.census import build
from tests.surgery.small_edits import LENGTH, edit_at, logits, make_surgeon

LAST = 3
"""The tiny models' last layer."""


Recorded: TypeAlias = tuple[TorchSurgeon, Tensor, RecordedRun]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """A surgeon, prompts and their recording."""
    surgeon, prompts = make_surgeon("gemma2"), tokens("gemma2")
    return surgeon, prompts, surgeon.record(prompts)


def widths(
    surgeon: TorchSurgeon, edits: list[Edit], reads: list[Read], **options: Any
) -> tuple[list[int], list[Tensor]]:
    """Tokens that the last layer's MLP is given, and what is read."""
    prompts = tokens("llama")
    recording, widths_seen = surgeon.record(prompts, keep={"z"}), []
    mlp: Any = surgeon.anatomy.layer_modules(surgeon.model)[LAST].get_submodule(surgeon.anatomy.parts[LAST].mlp[0])
    handle = mlp.down_proj.register_forward_pre_hook(lambda _, args: widths_seen.append(args[0].shape[1]))
    try:
        return widths_seen, surgeon.run(recording, edits, reads, **options)
    finally:
        handle.remove()


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("readout", [[12], [10, 12]])
def test_reads_equal_the_full_layer(family: Family, readout: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    surgeon = make_surgeon(family)
    edits, reads = [edit_at(surgeon, "resid", 1, 4, LENGTH)], [Read("logits", at=readout)]
    widths_seen, (narrow,) = widths(surgeon, edits, reads)
    monkeypatch.setattr(replay, "count_unread_queries", lambda *_: 0)
    full_widths, (full,) = widths(surgeon, edits, reads)
    assert (widths_seen[-1], full_widths[-1]) == (LENGTH - readout[0], LENGTH - 4)
    assert agree(narrow, full)
    (clean,) = surgeon.run(surgeon.record(tokens("llama")), [], reads)
    assert is_changed(full, clean), "this edit would not tell a wrong layer from a right one"


@pytest.mark.parametrize(
    ("site", "layer", "read", "options"),
    [
        ("q", LAST, Read("logits", at=[12]), {}),
        ("z", LAST, Read("logits", at=[12]), {}),
        ("resid", 1, Read("z", at=[6], head=[(LAST, 0)]), {}),
        ("resid", 1, Read("mlp_out", at=[6], layer=LAST), {}),
        ("resid", 1, Read("resid", at=[4], layer=LAST + 1), {}),
    ],
    ids=["q edited", "z edited", "z read", "mlp read", "first token read"],
)
def test_layer_with_reads_runs_in_full(site: Any, layer: int, read: Read, options: dict[str, Any]) -> None:
    surgeon = make_surgeon("llama")
    reads = [read, Read("logits", at=[12])]
    edits = [edit_at(surgeon, site, layer, position, LENGTH) for position in (4, 12)]  # the second is seen by a read
    widths_seen, _ = widths(surgeon, edits, reads, **options)
    assert widths_seen[-1] == LENGTH - 4


def test_a_read_of_the_residual_below_the_top_is_narrow_too() -> None:
    surgeon = make_surgeon("llama")
    edit, read = edit_at(surgeon, "resid", 1, 4, LENGTH), Read("resid", at=[12], layer=LAST)
    (actual,) = surgeon.run(surgeon.record(tokens("llama")), [edit], [read])
    (all_tokens,) = surgeon.run(
        surgeon.record(tokens("llama")), [edit], [Read("resid", at=list(range(LENGTH)), layer=LAST)]
    )
    assert agree(actual[:, 0], all_tokens[:, 12])
    assert torch.isfinite(actual).all()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_equals_masked_edits(family: Family) -> None:
    """Random active heads, several a row and none in the last row, against masked edits over the whole prompt."""
    surgeon, prompts = make_surgeon(family), tokens(family)
    anatomy, length = surgeon.anatomy, prompts.shape[1]
    recording = surgeon.record(prompts, keep={"z"})
    means = [z.mean(0) for z in recording.sites["z"]]
    dice = torch.Generator().manual_seed(0)
    n_rows, n_places = 7, 14
    bounds = (n_rows - 1, anatomy.n_layers, anatomy.n_heads, length - 3)
    draws = [torch.randint(0, bound, (n_places,), generator=dice) for bound in bounds]
    active = ActiveHeads(draws[0], draws[1], draws[2], draws[3] + 3)
    source, readout = torch.arange(n_rows) % prompts.shape[0], torch.full((n_rows,), length - 1)
    base = surgeon.record_mean_ablated(prompts, means)
    actual = surgeon.run_mean_ablated(base, active, source=source, readout=readout, reduce=lambda logits, rows: logits)
    edits = ablation_edits(means, active, n_rows)
    (expected,) = surgeon.run(recording, edits, [Read("logits", at=[length - 1])], source=source)
    assert agree(actual, expected)
    (clean,) = surgeon.run(recording, [], [Read("logits", at=[length - 1])], source=source)
    no_heads = ActiveHeads(*(torch.empty(0, dtype=torch.long) for _ in range(4)))
    empty = surgeon.run_mean_ablated(base, no_heads, source=source, readout=readout, reduce=lambda logits, rows: logits)
    assert is_changed(expected, clean)
    assert is_changed(actual[:-1], empty[:-1])
    assert agree(actual[-1:], empty[-1:])


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_frozen_short_cut_is_the_long_way(family: Family) -> None:
    """Frozen runs that compute a few tokens equal frozen runs of whole layers, and differ from live ones."""
    surgeon, prompts = make_surgeon(family), tokens(family)
    recording = surgeon.record(prompts, keep={"z"})
    long_way = TorchSurgeon(surgeon.model, replace(surgeon.anatomy, branches=None))
    for layer in range(surgeon.anatomy.n_layers):
        edits = [edit_at(surgeon, "z", layer, 6, prompts.shape[1]), edit_at(surgeon, "mlp_out", 1, 6, prompts.shape[1])]
        short = logits(surgeon, recording, edits, [6], attention="frozen")
        assert agree(short, logits(long_way, recording, edits, [6], attention="frozen"))
        if layer < surgeon.anatomy.n_layers - 1:
            assert is_changed(short, logits(surgeon, recording, edits, [6]))


def test_rows_batches_and_order_do_not_matter(recorded: Recorded) -> None:
    """Rows of other heads, layers and positions, in one batch, in pieces, one by one, and in another order."""
    surgeon, prompts, recording = recorded
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


def test_out_of_memory_halves_the_batch(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that does not fit is halved until it does, with the same results."""
    surgeon, prompts, recording = recorded
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


@pytest.mark.parametrize("limit", [1, 2, 3, 6])
def test_a_batch_that_does_not_fit_is_halved(limit: int) -> None:
    """Seven rows, at whatever size they fit: every row once, in its order."""
    sizes: list[int] = []

    def run(part: torch.Tensor) -> None:
        if part.numel() > limit:
            raise torch.OutOfMemoryError("pretend")
        sizes.extend(part.tolist())

    in_parts(torch.arange(7), 7, run)
    assert sizes == list(range(7))


def test_other_errors_are_not_retried() -> None:
    def fail(part: Tensor) -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        in_parts(torch.arange(7), 7, fail)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_bfloat16_on_the_same_path(family: Family) -> None:
    """In bf16 a replay rounds like a full forward: within 16 units in the last place, with the same best token.

    The bound is that of two bf16 runs that differ in the order of sums, measured on these models (below 8) and doubled;
    the best token may differ only where its lead is smaller than that.
    """
    model, prompts = tiny(family).to(torch.bfloat16), tokens(family)
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


def test_the_middle_of_a_layer_with_a_factor() -> None:
    """Granite multiplies what its branches add. A read is what the MLP's norm takes in; an edit changes that and, by as
    much, the layer's output; both by hooks on the library's modules."""
    model = build("granite")
    prompts = tokens("llama", n=2)
    norm, layer = model.get_submodule("model.layers.2.post_attention_layernorm"), model.get_submodule("model.layers.2")
    added = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    surgeon, seen, at = TorchSurgeon(model, derive(model)), list[Tensor](), prompts.shape[1] - 2
    recording = surgeon.record(prompts, keep={"resid_mid"})

    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[:, at] += added
        return value

    hooks = [
        norm.register_forward_pre_hook(lambda module, args: seen.append(args[0]) or (change(args[0]),)),
        layer.register_forward_hook(lambda module, args, output: change(output)),
    ]
    with torch.no_grad():
        expected = model(input_ids=prompts).logits[:, -1]
    for hook in hooks:
        hook.remove()
    edit = Edit("resid_mid", added, at=at, layer=2, mode="add")
    actual, clean = (surgeon.run(recording, edits, [Read("logits", at=at + 1)])[0] for edits in ([edit], []))
    assert agree(recording.sites["resid_mid"][2], seen[0])
    assert agree(actual, expected)
    assert is_changed(actual, clean)
