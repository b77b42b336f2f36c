"""An edit that changes nothing is an error: at every site and scope, recorded or not, by row, with either surgeon."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rebinding.surgery import Edit, NothingEdited, Read, Surgeon, TorchSurgeon, derive, in_layer
from rebinding.surgery.layers import split_edit, split_read
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.plan import reaching_rows, touched
from rebinding.surgery.sites import HEADLESS, SITES, Attention, Scope, Site
from tests.close import agree, is_changed
from tests.everyday import sampled
from tests.families.models import USUAL, Family, tiny, tokens
from tests.surgery.small_edits import LENGTH, RECORDED_SITES, place, width

LAYER, POSITION, HEAD = 1, 5, 1
POSITIONS = (POSITION - 2, POSITION, LENGTH - 1)
SURGEONS: tuple[type[TorchSurgeon | NNsightSurgeon], ...] = (TorchSurgeon, NNsightSurgeon)
SCOPED: list[tuple[Site, Scope | None]] = [
    (site, scope) for site in SITES for scope in (("group", "head") if site in ("k", "v") else (None,))
]


def make_surgeon(kind: type[TorchSurgeon | NNsightSurgeon], family: Family) -> Surgeon:
    """One of the two surgeons on a tiny model."""
    model = tiny(family)
    return kind(model, derive(model))


def choose_heads(site: Site, scope: Scope | None = None) -> list[int] | None:
    """The head that is edited; of a KV group, the group of query head `HEAD`."""
    if site in HEADLESS:
        return None
    return [0] if scope == "group" else [HEAD]


def value_at(surgeon: Surgeon, prompts: Tensor, site: Site, scope: Scope | None) -> Tensor:
    """What stands at the edited place, read in a run over all tokens: rounded otherwise than a run over a few."""
    heads = [0] if site in ("k", "v") else choose_heads(site, scope)
    read = Read(site, at=range(LENGTH), **place(site, LAYER, heads))
    return surgeon.run(surgeon.record(prompts), [], [read])[0][..., [POSITION], :]  # (row, [1,] 1, width)


@pytest.mark.parametrize("family", sampled(USUAL, "gemma3"))
@pytest.mark.parametrize("kind", SURGEONS)
@pytest.mark.parametrize(("site", "scope"), SCOPED)
def test_writing_back_what_was_read_is_refused(
    kind: type[TorchSurgeon | NNsightSurgeon], family: Family, site: Site, scope: Scope | None
) -> None:
    """Whatever was recorded. The same edit goes through with `allow_noop`, and gives the unedited run."""
    surgeon, prompts = make_surgeon(kind, family), tokens(family)
    value = value_at(surgeon, prompts, site, scope)
    edit = Edit(site, value, at=[POSITION], **place(site, LAYER, choose_heads(site, scope), scope=scope))
    reads = [Read("logits", at=[POSITION, LENGTH - 1])]
    z: Site = "z"
    recorded: list[tuple[Site, ...]] = [(), (z,), (z if site == "logits" else site,)]  # logits are never recorded
    for keep in recorded:
        recording = surgeon.record(prompts, keep=keep)
        with pytest.raises(NothingEdited, match="3 of 3 rows"):
            surgeon.run(recording, [edit], reads)
        (unedited,) = surgeon.run(recording, [], reads)
        assert agree(surgeon.run(recording, [edit], reads, allow_noop=True)[0], unedited)


def test_a_query_head_is_not_compared_with_the_kv_head_of_its_number() -> None:
    """Raw keys are recorded per KV head: there is none of the last query head's number."""
    surgeon, prompts = make_surgeon(TorchSurgeon, "llama"), tokens("llama")
    head, reads = surgeon.anatomy.n_heads - 1, [Read("logits", at=[LENGTH - 1])]
    edit = Edit("k", torch.ones(1), at=[POSITION], head=[(LAYER, head)], scope="head")
    (recorded,), (unrecorded,) = (
        surgeon.run(surgeon.record(prompts, keep=keep), [edit], reads) for keep in (("k",), ())
    )
    assert torch.equal(recorded, unrecorded)


@pytest.mark.parametrize("kind", SURGEONS)
@pytest.mark.parametrize(("site", "scope"), SCOPED)
def test_rows_are_judged_one_by_one(kind: type[TorchSurgeon | NNsightSurgeon], site: Site, scope: Scope | None) -> None:
    """Row 0 is changed, row 1 is not, row 2 is named by no edit: the error names row 1 and nothing else."""
    surgeon, prompts = make_surgeon(kind, "gemma3"), tokens("gemma3")
    value = value_at(surgeon, prompts, site, scope)[:2].clone()
    value[0, ..., 3] += 5.0  # one entry: the same for all would leave a softmax as it is
    edit = Edit(site, value, at=[POSITION], rows=[0, 1], **place(site, LAYER, choose_heads(site, scope), scope=scope))
    recording, reads = surgeon.record(prompts), [Read("logits", at=[POSITION, LENGTH - 1])]
    with pytest.raises(NothingEdited, match=r"1 of 3 rows .*\(row 1\)"):
        surgeon.run(recording, [edit], reads)
    (clean,) = surgeon.run(recording, [], reads)
    (edited,) = surgeon.run(recording, [edit], reads, allow_noop=True)
    assert agree(edited[1:], clean[1:])
    assert is_changed(edited[0], clean[0])


@pytest.mark.parametrize("kind", SURGEONS)
def test_edits_of_one_place_are_judged_together(kind: type[TorchSurgeon | NNsightSurgeon]) -> None:
    """Two additions that cancel are a no-op unless something else changes the row; a value put back in a layer above a
    change is not, as it holds it."""
    surgeon, prompts = make_surgeon(kind, "llama"), tokens("llama")
    recording, last = surgeon.record(prompts, keep={"z"}), [Read("logits", at=[LENGTH - 1])]
    shift = torch.randn(10, generator=torch.Generator().manual_seed(2))
    shift_edit = Edit("z", shift, at=[POSITION], head=[(1, 1)], mode="add")
    reverse_edit = Edit("z", -shift, at=[POSITION], head=[(1, 1)], mode="add")
    with pytest.raises(NothingEdited):
        surgeon.run(recording, [shift_edit, reverse_edit], last)
    surgeon.run(recording, [shift_edit, reverse_edit, replace(shift_edit, head=[(1, 2)])], last)
    restoring_edit = Edit("z", recording.sites["z"][2], at=range(LENGTH), head=in_layer(2, range(6)))
    (total,), (direct,) = (
        surgeon.run(recording, [shift_edit], last),
        surgeon.run(recording, [shift_edit, restoring_edit], last),
    )
    assert is_changed(direct, total)


def test_a_small_addition_is_an_edit() -> None:
    """`add` counts as soon as a bit differs, however small; less than a bit is a no-op."""
    surgeon, prompts = make_surgeon(TorchSurgeon, "llama"), tokens("llama")
    recording, last = surgeon.record(prompts), [Read("logits", at=[LENGTH - 1])]
    size = float(recording.sites["resid"][1][:, POSITION].abs().max())
    surgeon.run(recording, [Edit("resid", torch.tensor([size * 1e-6]), at=[POSITION], layer=1, mode="add")], last)
    with pytest.raises(NothingEdited):
        surgeon.run(recording, [Edit("resid", torch.tensor([1e-30]), at=[POSITION], layer=1, mode="add")], last)


def list_reads() -> list[Read]:
    """Every site and layer, before, at and after the edit; its head, one in its KV group and one outside."""
    reads = [
        Read(site, at=POSITIONS, **place(site, layer, [0, 1] if site in ("k", "v") else [0, HEAD, 4]))
        for site in RECORDED_SITES
        for layer in (range(5) if site == "resid" else range(4))
    ]
    return [*reads, Read("logits", at=POSITIONS)]


def split_cells(read: Read) -> Iterator[Read]:
    """A read of each of its heads and positions, in the order of its values."""
    heads = [None] if read.head is None else torch.as_tensor(read.head).reshape(-1, 1, 2)
    for head in heads:
        for position in POSITIONS:
            yield replace(read, head=head, at=[position])


@pytest.mark.parametrize(
    ("site", "scope", "attention"),
    [
        *((site, scope, "live") for site, scope in SCOPED),
        *((site, None, "frozen") for site in ("resid", "z", "resid_mid", "mlp_out", "logits")),
    ],
)
def test_visible_reads_are_those_that_a_full_forward_changes(
    site: Site, scope: Scope | None, attention: Attention
) -> None:
    """Reach is derived, and held against full forwards in which nothing is skipped; with both surgeons in agreement."""
    model = tiny("llama")
    anatomy, prompts = derive(model), tokens("llama")[:1]
    value = torch.randn(width(site), generator=torch.Generator().manual_seed(3)) * 2
    if site == "pattern":
        value = value.softmax(0)
    heads, layer = choose_heads(site, scope), 4 if site == "logits" else LAYER
    edit = Edit(site, value, at=[POSITION], **place(site, layer, heads, scope=scope))
    reads = list_reads()
    answers = {}
    for kind in SURGEONS:
        surgeon = kind(model, anatomy)
        recording = surgeon.record(prompts, keep={"z"})
        clean = surgeon.run(recording, [], reads, attention=attention)
        answers[kind] = clean, surgeon.run(recording, [edit], reads, attention=attention, allow_noop=True)
    planned = (
        Edit("v_seen", value, [POSITION], **place("v_seen", layer, heads)) if (site, scope) == ("v", "head") else edit
    )
    (split,) = split_edit(anatomy, planned, LENGTH)
    derived = [
        [
            bool(reaching_rows(anatomy, split, split_read(anatomy, cell, LENGTH), touched(split, 1), attention))
            for cell in split_cells(read)
        ]
        for read in reads
    ]
    unedited, edited = answers[NNsightSurgeon]  # one computation twice: what is out of reach is equal to the bit
    for read, before, after, can_see in zip(reads, unedited, edited, derived, strict=True):
        is_equal = (before == after).all(dim=-1).flatten().tolist()
        assert [not equal for equal in is_equal] == can_see, read
    for actual, expected in zip(answers[TorchSurgeon], answers[NNsightSurgeon], strict=True):
        assert all(agree(a, b) for a, b in zip(actual, expected, strict=True))
    assert len({seen for cells in derived for seen in cells}) == 2
