"""What cannot be run is refused, each for its own reason, by both surgeons alike: edits, reads, prompts and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Olmo2Config, Olmo2ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, apply_rotary_pos_emb, eager_attention_forward

from rebinding.surgery import (
    ActiveHeads,
    Edit,
    NothingEdited,
    Read,
    RecordedRun,
    Surgeon,
    SurgeryError,
    TorchSurgeon,
    derive,
    in_layer,
)
from rebinding.surgery.layers import split_edit
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.close import agree, is_changed
from tests.families.models import SIZES, VOCABULARY, Family, make_hostile, tiny, tokens

VALUE = torch.ones(10)
LAST = Read("logits", at=[12])
ADD_EDIT = Edit("z", torch.ones(10), at=[4], head=[(1, 0)], mode="add")


def edit(site: Any = "z", value: Any = VALUE, **options: Any) -> Edit:
    """An edit of one head at the first token, unless said otherwise."""
    return Edit(site, value, **{"at": [0], "head": [(0, 0)]} | options)


@pytest.fixture(scope="module", params=[TorchSurgeon, NNsightSurgeon])
def surgeon(request: pytest.FixtureRequest) -> Surgeon:
    """Each of the two."""
    model = tiny("llama")
    surgeon: Surgeon = request.param(model, derive(model))
    return surgeon


@pytest.fixture(scope="module")
def recording(surgeon: Surgeon) -> RecordedRun:
    """Three prompts of thirteen tokens."""
    return surgeon.record(tokens("llama"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"site": "hook_z"}, "unknown site 'hook_z'; TransformerLens's point of this name is site='z' here"),
        ({"site": "blocks.3.hook_resid_post"}, "is site='resid' of the next layer here"),
        ({"site": "nowhere"}, "unknown site 'nowhere'"),
        ({"site": "answers"}, "unknown site 'answers'"),
        ({"site": "resid"}, "has no heads"),
        ({"site": "logits"}, "leave head and layer out"),
        ({"head": None}, "per head"),
        ({"layer": 0}, "per head.* and no layer"),
        ({"site": "k"}, "with scope None: k and v are edited and read with"),
        ({"site": "k", "scope": "both"}, "unknown scope 'both'; write scope='group' or scope='head'"),
        ({"site": "v", "scope": "Head"}, "unknown scope 'Head'"),
        ({"scope": "head"}, "no other site takes a scope"),
        ({"mode": "sett"}, "unknown mode 'sett'; write mode='set' or mode='add'"),
        ({"site": "resid", "head": None, "layer": 4.5}, r"layer must be an integer; got 4\.5"),
        ({"site": "resid", "head": None, "layer": 1.0}, "layer must be an integer"),
        ({"site": "resid", "head": None, "layer": True}, "layer must be an integer; got True"),
        ({"site": "resid", "head": None, "layer": "1"}, "layer must be an integer; got '1'"),
        ({"value": "0.5"}, "value must be a number or a tensor.*got a str"),
        ({"at": [0, 0]}, "positions name the same index twice"),
        ({"at": [0, -13]}, "positions name the same index twice"),
        ({"at": [-14]}, "positions are counted from 0; got -1"),
        ({"at": torch.tensor([-1])}, "positions are counted from 0; got -1"),
        ({"at": "readout"}, "only prompts know names"),
        ({"head": (0, -1)}, r"there is no head \(0, -1\)"),
        ({"head": [(0, 1), (0, 1)]}, "heads name the same index twice"),
        ({"head": torch.tensor([[[0, 1]], [[1, 1]], [[0, 1]]])}, "heads of several layers"),
        ({"at": torch.zeros(1, 1, 1, dtype=torch.long)}, r"positions must be one index.*shape \(1, 1, 1\)"),
        ({"head": [[[0]]]}, r"head must be \(layer, head\)"),
        ({"at": []}, "positions must be one index"),
        ({"rows": [1, 1]}, "lists a row twice"),
        ({"rows": [-1]}, "rows are counted from 0.* row -1"),
        ({"rows": [-1, 2]}, "rows are counted from 0.* row -1"),
        ({"where": torch.ones(1)}, r"mask .* must be a boolean tensor; got a tensor of torch\.float32"),
        ({"where": [True]}, r"mask .* must be a boolean tensor; got \[True\]"),
        ({"head": (9, 0)}, r"no head \(9, 0\): the model has layers 0 to 3"),
        ({"head": (-1, 0)}, r"no head \(-1, 0\)"),
        ({"at": [99]}, "position 99"),
        ({"head": [(0, 6)]}, "z counts query heads"),
        ({"site": "k", "head": [(0, 2)], "scope": "group"}, "k counts KV heads"),
        ({"site": "k", "head": [(0, 6)], "scope": "head"}, "k counts query heads"),
        ({"value": torch.zeros(7)}, "value .* must broadcast"),
        (
            {"where": torch.ones(5, dtype=torch.bool)},
            r"mask .* has shape \(1, 1, 5\); it must broadcast to \(3, 1, 1\)",
        ),
        ({"rows": [5]}, "row 5"),
        ({"head": in_layer(0, [[0], [1]])}, "heads has 2 lines for 3 rows"),
        ({"at": [[0], [1]]}, "positions has 2 lines for 3 rows"),
    ],
)
def test_edits_that_cannot_be_are_refused(
    surgeon: Surgeon, recording: RecordedRun, arguments: dict[str, Any], message: str
) -> None:
    """Edits that mean nothing, and edits that do not fit what was recorded: each with its own message."""
    with pytest.raises(SurgeryError, match=message):
        surgeon.run(recording, [edit(**arguments)], [LAST])


NO_INTEGERS = [
    1.7,
    [1.7],
    [0, 1.0],
    True,
    [True],
    [False, 1],
    torch.tensor([1.0]),
    torch.tensor([True]),
    np.array([1.7]),
]


@pytest.mark.parametrize("argument", ["at", "rows"])
@pytest.mark.parametrize("index", NO_INTEGERS, ids=repr)
def test_indices_are_integers(argument: str, index: Any) -> None:
    """A float is not cut to an integer, and a flag is no index."""
    with pytest.raises(SurgeryError, match=r"must be integers.*; got"):
        edit(**{argument: index})


@pytest.mark.parametrize(
    "head", [(0, 1.7), (0, True), [(0, 1), (0.0, 1)], [(0, "1")], torch.tensor([[0.0, 1.0]])], ids=repr
)
def test_heads_are_pairs_of_integers(head: Any) -> None:
    with pytest.raises(SurgeryError, match=r"head must be \(layer, head\).*; got"):
        edit(head=head)


def test_lines_of_unequal_length_are_no_table() -> None:
    with pytest.raises(SurgeryError, match=r"lines of one length.*\[\[1\], \[2, 3\]\]"):
        edit(at=[[1], [2, 3]])


@pytest.mark.parametrize(
    "index",
    [
        2,
        (2,),
        range(2, 3),
        np.int64(2),
        [np.int32(2)],
        np.array([2], dtype=np.uint8),
        torch.tensor(2),
        torch.tensor([2], dtype=torch.uint8),
        torch.tensor([2], dtype=torch.int32),
    ],
    ids=repr,
)
def test_integers_of_every_kind_are_indices(index: Any) -> None:
    """They name the same place, also where torch would read bytes as a mask."""
    (result,) = split_edit(derive(tiny("llama")), edit(at=index, head=in_layer(np.int64(2), index), rows=index), 13)
    assert result.rows is not None
    assert result.heads is not None
    assert [result.positions.tolist(), result.heads.tolist(), result.rows.tolist()] == [[[2]], [[2]], [2]]
    assert {table.dtype for table in (result.positions, result.heads, result.rows)} == {torch.int64}
    assert type(result.layer) is int


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"rows": []}, "lists no rows"), ({"where": torch.zeros(1, dtype=torch.bool)}, "masked out everywhere")],
)
def test_edits_of_no_place_change_nothing(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(NothingEdited, match=message):
        edit(**arguments)


def test_edits_that_reach_no_read_are_refused(surgeon: Surgeon) -> None:
    """An edit above or after everything that is read changes nothing: an error, not a quiet clean run."""
    recording = surgeon.record(tokens("llama"), keep={"z"})
    late, high = (Edit("z", VALUE, at=[8], head=[(layer, 1)], mode="add") for layer in (1, 3))
    for edit, read in ((late, Read("logits", at=[5])), (high, Read("resid", at=[12], layer=3))):
        with pytest.raises(NothingEdited):
            surgeon.run(recording, [edit], [read])
    query = Edit("q", VALUE, at=[8], head=[(1, 1)], mode="add")
    with pytest.raises(SurgeryError, match="frozen"):
        surgeon.run(recording, [query], [Read("logits", at=[8])], attention="frozen")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Read("nowhere", at=[0], layer=0), "unknown site 'nowhere'"),
        (lambda: Read("resid", at=[0], head=[(0, 0)]), "has no heads"),
        (lambda: Read("z", at=[0], layer=0), "per head"),
        (lambda: Read("resid", at=[-14], layer=0), "positions are counted from 0"),
        (lambda: Read("resid", at=[1.7], layer=0), "positions must be integers"),
        (lambda: Read("z", at=[0], head=[(0, True)]), "head must be"),
        (lambda: Read("resid", at=[0], layer=1.0), "layer must be an integer"),
        (lambda: Read("z", at=[0], head=[(4, 0)]), r"no head \(4, 0\): the model has layers 0 to 3"),
        (lambda: Read("resid", at=[0], layer=5), "no layer 5: 'resid' has layers 0 to 4"),
        (lambda: Read("resid", at=[0]), "give layer="),
        (lambda: Read("logits", at=[13]), "position 13 in prompts of 13 tokens"),
        (lambda: Read("z", at=[0], head=[(0, 6)]), r"no head \(0, 6\): .* query heads 0 to 5"),
        (lambda: Read("v", at=[0], head=[(0, 2)], scope="group"), r"no head \(0, 2\): .* KV heads 0 to 1"),
        (lambda: Read("k", at=[0], head=(0, 0)), "with scope None"),
        (lambda: Read("answers"), "read them with a rebinding.Recording"),
        (lambda: Read("logits"), "only prompts know names"),
        (lambda: Read("logits", at=[[0], [1]]), "positions has 2 lines for 3 rows"),
    ],
)
def test_reads_that_cannot_be_are_refused(
    surgeon: Surgeon, recording: RecordedRun, make: Callable[[], Read], message: str
) -> None:
    """Like edits, each with its own message; also beside a read that can be."""
    with pytest.raises(SurgeryError, match=message):
        surgeon.run(recording, [], [LAST, make()])


def test_a_run_reads_something(surgeon: Surgeon, recording: RecordedRun) -> None:
    with pytest.raises(SurgeryError, match="nothing is read: list at least one Read"):
        surgeon.run(recording, [ADD_EDIT], [])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (torch.tensor([9]), "source names prompt 9; the recording has prompts 0..2"),
        (torch.tensor([0, -1]), "source names prompt -1"),
        (torch.tensor([3]), "source names prompt 3"),
        (torch.tensor([], dtype=torch.long), r"1-d integer tensor.*of shape \(0,\)"),
        (torch.tensor([0.0, 1.0]), r"1-d integer tensor.*got torch\.float32"),
        (torch.tensor([True, False]), r"1-d integer tensor.*got torch\.bool"),
        (torch.tensor([[0, 1]]), r"1-d integer tensor.*of shape \(1, 2\)"),
        (torch.tensor(0), r"1-d integer tensor.*of shape \(\)"),
        ([0, 1], r"1-d integer tensor.*got a list\. Use torch\.tensor"),
    ],
    ids=str,
)
def test_source_names_a_recorded_prompt_for_each_row(
    surgeon: Surgeon, recording: RecordedRun, source: Any, message: str
) -> None:
    with pytest.raises(SurgeryError, match=message):
        surgeon.run(recording, [], [LAST], source=source)


def test_source_of_bytes_is_no_mask(surgeon: Surgeon, recording: RecordedRun) -> None:
    """Torch reads an index of bytes as a mask; here they are numbers of prompts."""
    (expected,) = surgeon.run(recording, [ADD_EDIT], [LAST], source=torch.tensor([1, 0]))
    (actual,) = surgeon.run(recording, [ADD_EDIT], [LAST], source=torch.tensor([1, 0], dtype=torch.uint8))
    assert agree(actual, expected)
    assert is_changed(expected[0], expected[1])


def test_attention_is_live_or_frozen(surgeon: Surgeon) -> None:
    recording = surgeon.record(tokens("llama"), keep={"z"})
    with pytest.raises(SurgeryError, match="unknown attention 'frozn'; write attention='live' or attention='frozen'"):
        surgeon.run(recording, [ADD_EDIT], [LAST], attention="frozn")


def test_frozen_attention_needs_recorded_heads(surgeon: Surgeon, recording: RecordedRun) -> None:
    """The message says how to record them, and then the run goes through."""
    read = Read("logits", at=[4])
    with pytest.raises(SurgeryError, match=r"record\(tokens, keep=\{'z'\}\)"):
        surgeon.run(recording, [ADD_EDIT], [read], attention="frozen")
    smaller_recording = surgeon.record(tokens("llama"), keep={"z"})
    (edited,) = surgeon.run(smaller_recording, [ADD_EDIT], [read], attention="frozen")
    (clean,) = surgeon.run(smaller_recording, [], [read], attention="frozen")
    assert is_changed(edited, clean)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (torch.zeros(3, 1, dtype=torch.long), r"tokens must be \(prompt, token\).*got shape \(3, 1\)"),
        (torch.zeros(5, dtype=torch.long), r"tokens must be \(prompt, token\).*got shape \(5,\)"),
        (torch.zeros(0, 5, dtype=torch.long), r"at least one prompt.*got shape \(0, 5\)"),
        (torch.zeros(1, 2, 3, dtype=torch.long), r"tokens must be \(prompt, token\)"),
        (torch.zeros(2, 5), r"tokens must be integers.*got torch\.float32"),
        (torch.zeros(2, 5, dtype=torch.bool), r"tokens must be integers.*got torch\.bool"),
        (torch.full((2, 5), VOCABULARY), f"vocabulary of the model, 0..{VOCABULARY - 1}; got token {VOCABULARY}"),
        (torch.tensor([[3, 4, -1]]), "vocabulary of the model.*got token -1"),
    ],
)
def test_prompts_that_a_model_cannot_run_are_refused(surgeon: Surgeon, prompts: Tensor, message: str) -> None:
    """When they are recorded, and not when something is read."""
    with pytest.raises(SurgeryError, match=message):
        surgeon.record(prompts)


def test_every_token_of_the_vocabulary_is_recorded(surgeon: Surgeon) -> None:
    """The first and the last are none too many, and integers of half the size will do."""
    edges = torch.tensor([[0, VOCABULARY - 1, 3]])
    (expected,) = surgeon.run(surgeon.record(edges), [], [Read("logits", at=[2])])
    (actual,) = surgeon.run(surgeon.record(edges.int()), [], [Read("logits", at=[2])])
    assert agree(actual, expected)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"nowhere"}, "keep names the unknown site 'nowhere'; the sites are resid, q, k,"),
        (("z", "keys"), "keep names the unknown site 'keys'"),
        ({"logits"}, "logits are not kept for every token"),
        ("mlp_out", r"keep must be a set of sites; got the word 'mlp_out'\. Write keep=\{'mlp_out'\}"),
    ],
    ids=str,
)
def test_only_sites_of_every_token_are_kept(surgeon: Surgeon, keep: Any, message: str) -> None:
    with pytest.raises(SurgeryError, match=message):
        surgeon.record(tokens("llama"), keep=keep)


@pytest.mark.parametrize("short", range(4))
def test_active_places_have_equal_lengths(short: int) -> None:
    lists = [torch.zeros(1 if number == short else 2, dtype=torch.long) for number in range(4)]
    with pytest.raises(SurgeryError, match=r"differ in length: \[1, 2\]"):
        ActiveHeads(*lists)


# Raw keys of single query heads, where what the model makes of a key is not known exactly

NOISE = torch.randn(10, generator=torch.Generator().manual_seed(1))


class ScaledKeys(Qwen3Attention):
    """The planted fault: keys are scaled after the rotation."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The forward of Qwen 3, with one line more."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        key = 1.5 * key
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(  # the name by which nnsight finds it
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


def key_edit(scope: Any) -> Edit:
    """A raw key in layer 1, of query head 1 or of its group."""
    return Edit("k", NOISE, at=[6], head=[(1, 0 if scope == "group" else 1)], scope=scope)


@pytest.mark.parametrize(("kind", "error"), [(TorchSurgeon, SurgeryError), (NNsightSurgeon, RuntimeError)])
def test_extra_steps_between_projection_and_attention_are_refused(kind: Any, error: type[Exception]) -> None:
    """Were it not, the edited key would miss the scale. The group's key goes the model's own way and may be edited."""
    model = tiny("qwen3")
    for layer in model.model.layers:
        layer.self_attn.__class__ = ScaledKeys
    surgeon: Surgeon = kind(model, derive(model))
    recording = surgeon.record(tokens("qwen3"))
    with pytest.raises(error, match=r"does more to a key than norm and .*: edit k_rot instead of the raw key"):
        surgeon.run(recording, [key_edit("head")], [LAST])
    (edited,) = surgeon.run(recording, [key_edit("group")], [LAST])
    (clean,) = surgeon.run(recording, [], [LAST])
    assert is_changed(edited, clean)


def test_keys_that_are_normed_together_are_edited_together() -> None:
    """Olmo 2 norms all heads of a key at once: there is no key of one head before the norm, but there is a group's."""
    model = Olmo2ForCausalLM(Olmo2Config(**{**SIZES, "hidden_size": 60}))
    make_hostile(model, 0)
    surgeon = TorchSurgeon(model, derive(model))
    recording = surgeon.record(tokens("llama"))
    with pytest.raises(SurgeryError, match=r"normalises all heads together.*use scope='group'"):
        surgeon.run(recording, [key_edit("head")], [LAST])
    (edited,) = surgeon.run(recording, [key_edit("group")], [LAST])
    (clean,) = surgeon.run(recording, [], [LAST])
    assert is_changed(edited, clean)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("gpt_neox", "computes attention and MLP side by side"),
        ("qwen3_next", "some have a state in place of attention heads"),
        ("gemma3n_text", "in a way that is not known"),
    ],
)
def test_layers_without_a_middle_are_refused(family: Family, reason: str) -> None:
    """By both surgeons, in an edit and in a read; a recording keeps nothing there."""
    model = tiny(family)
    anatomy, prompts = derive(model), tokens(family)[:1]
    for surgeon in (TorchSurgeon(model, anatomy), NNsightSurgeon(model, anatomy)):
        recording = surgeon.record(prompts)
        for edits, read in (
            ([], Read("resid_mid", at=2, layer=1)),
            ([Edit("resid_mid", 0.0, at=2, layer=1)], Read("logits", at=3)),
        ):
            with pytest.raises(SurgeryError, match=rf"layer 1 has no resid_mid: .*{reason}"):
                surgeon.run(recording, edits, [read])
    kept = TorchSurgeon(model, anatomy).record(prompts, keep={"resid_mid"})
    assert all(not value.numel() for value in kept.sites.get("resid_mid", []))
