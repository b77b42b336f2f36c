"""Edits and models that would give a number without a word: each is refused, or gives the right number."""

from __future__ import annotations

import json
import math
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rebinding
from rebinding import Circuit, Edit, JudgeError, NothingEdited, Pairs, Read
from rebinding.models import ModelError
from rebinding.paper.circuit import CircuitError, Owner, to_json
from rebinding.paper.circuit import load as load_circuit
from rebinding.surgery import SurgeryError
from tests.api.small import GROUP, LENGTH, model_of, prompts_of
from tests.close import agree

HEAD = (1, 2)


# edits


@pytest.mark.parametrize("site", ["scores", "pattern"])
@pytest.mark.parametrize("mode", ["set", "add"])
def test_a_number_goes_to_visible_keys_only(site: Any, mode: Any) -> None:
    """Later keys, and those outside of a sliding window, stay closed."""
    model = model_of("gemma2")
    recording = model.record(prompts_of(model, "gemma2"))
    for layer in (0, 1):  # a sliding window, all keys
        (before,) = recording.read(Read("pattern", head=(layer, 1), at=9))  # (prompt, key)
        edit = Edit(site, 0.25, at=9, head=(layer, 1), mode=mode)
        (after,) = recording.run(edit, Read("pattern", head=(layer, 1), at=9), allow_noop=True)
        is_visible = before > 0
        assert is_visible.sum(-1).tolist() == [5 if layer == 0 else 10] * 2
        assert not bool(after[~is_visible].any())
        expected = {
            ("scores", "set"): is_visible / is_visible.sum(-1, keepdim=True),
            ("scores", "add"): before,
            ("pattern", "set"): 0.25 * is_visible,
            ("pattern", "add"): before + 0.25 * is_visible,
        }[site, mode]
        assert torch.allclose(after, expected.to(after), rtol=0, atol=1e-5)


def test_values_that_open_masked_keys_are_refused() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    scores, pattern = recording.read(*(Read(site, head=HEAD, at=[9]) for site in ("scores", "pattern")))
    own = [Edit("scores", scores + 1, at=[9], head=HEAD), Edit("pattern", pattern * 0.5, at=[9], head=HEAD)]
    for edit in own:
        recording.run(edit, Read("pattern", head=HEAD, at=9), allow_noop=True)
    for site in ("scores", "pattern"):
        with pytest.raises(SurgeryError, match="opens keys that the query cannot see"):
            recording.run(Edit(site, torch.ones(2, 1, LENGTH), at=[9], head=HEAD), Read("logits"))
        with pytest.raises(SurgeryError, match="opens keys that the query cannot see"):  # the row of a later query
            recording.run(Edit(site, recording.read(Read(site, head=HEAD, at=11))[0], at=9, head=HEAD), Read("logits"))


def test_a_score_of_minus_infinity_closes_a_key() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    (scores,) = recording.read(Read("scores", head=HEAD, at=9))  # (prompt, key)
    scores[:, 3] = -math.inf
    (pattern,) = recording.run(Edit("scores", scores, at=9, head=HEAD), Read("pattern", head=HEAD, at=9))
    assert not bool(pattern[:, 3].any())
    assert torch.allclose(pattern.sum(-1), torch.ones(2).to(pattern))
    with pytest.raises(SurgeryError, match="minus infinity at every key"):
        recording.run(Edit("scores", -math.inf, at=9, head=HEAD), Read("logits"))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, torch.tensor([1.0, math.inf])])
def test_infinities_are_refused(value: Any) -> None:
    with pytest.raises(SurgeryError, match="NaN or an infinity"):
        model_of().record(prompts_of(model_of())).run(Edit("z", value, at=1, head=HEAD), Read("logits"))


OVERWRITTEN: dict[str, Callable[[], tuple[Edit, Edit]]] = {
    "query": lambda: (Edit("q", 0.0, at=9, head=HEAD), Edit("q_rot", 0.0, at=9, head=HEAD)),
    "pattern": lambda: (Edit("pattern", 0.0, at=[8, 9], head=HEAD), Edit("z", 0.0, at=[9, 8, 7], head=HEAD)),
    "key": lambda: (
        Edit("k", 0.0, at=9, head=HEAD, scope="head"),
        Edit("k_rot", 0.0, at=9, head=[(1, 0), HEAD]),
    ),
    "value of a group": lambda: (
        Edit("v", 0.0, at=9, head=(1, 0), scope="group"),
        Edit("v_seen", 0.0, at=9, head=[(1, number) for number in range(GROUP)]),
    ),
    "layer": lambda: (Edit("z", 0.0, at=9, head=HEAD), Edit("resid", 0.0, at=9, layer=2)),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_an_edit_that_another_undoes_is_refused(name: str) -> None:
    """In either order; `add` instead of `set`, another head or another position lets both act."""
    model = model_of()
    recording = model.record(prompts_of(model))
    first, second = OVERWRITTEN[name]()
    for edits in ([first, second], [second, first]):
        with pytest.raises(SurgeryError, match=f"an edit of '{first.site}' .* would not act: .* sets {second.site}"):
            recording.run(edits, Read("logits"))
    added = Edit(second.site, 1.0, at=second.at, head=second.head, layer=second.layer, mode="add")
    moved = Edit(second.site, 0.0, at=2, head=second.head, layer=second.layer)
    (alone,) = recording.run(first, Read("logits"))
    for other in (added, moved):
        (both,) = recording.run([first, other], Read("logits"))
        (only,) = recording.run(other, Read("logits"))
        assert not torch.allclose(both, only, rtol=0, atol=1e-4)
        assert not torch.allclose(both, alone, rtol=0, atol=1e-4)


def test_a_read_beside_an_edit_of_the_copy_is_refused() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    for site, copy in (("k", "k_rot"), ("v", "v_seen")):
        edit = Edit(site, 1.0, at=9, head=HEAD, scope="head")
        with pytest.raises(SurgeryError, match=f"leaves as it is; read '{copy}'"):
            recording.run(edit, Read("logits"), Read(site, at=9, head=HEAD, scope="head"))
        other_head, before = Read(site, at=9, head=(1, 0), scope="head"), Read(site, at=8, head=HEAD, scope="head")
        values = recording.run(edit, Read("logits"), other_head, before)
        for value, clean in zip(values[1:], recording.read(other_head, before), strict=True):
            assert agree(value, clean), "run anew, in sums of another shape"
        (seen,) = recording.run(
            Edit(site, 1.0, at=9, head=(1, 0), scope="group"), Read(site, at=9, head=HEAD, scope="head")
        )
        assert torch.equal(seen, torch.ones_like(seen))


def test_a_run_without_edits_is_refused() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    edit, read = Edit("z", 0.0, at=1, head=HEAD), Read("logits")
    for run in (lambda: recording.run([], read), lambda: recording.run_each([edit, []], read)):
        with pytest.raises(NothingEdited, match=r"no edits given.*recording\.read"):
            run()
    (with_clean,) = recording.run_each([edit, []], read, allow_noop=True)
    assert torch.equal(with_clean[1], recording.read(read)[0])
    with pytest.raises(SurgeryError, match="unknown mode 'scale'"):
        Edit("z", 1.0, at=1, head=HEAD, mode="scale")


# the model


def test_a_changed_model_needs_a_new_recording() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    weight = model.loaded.model.get_submodule("model.layers.2.mlp.up_proj").weight
    weight.data.mul_(1.5)
    for use in (
        lambda: recording.read(Read("logits")),
        lambda: recording.run(Edit("z", 0.0, at=1, head=HEAD), Read("logits")),
    ):
        with pytest.raises(SurgeryError, match="record the prompts again"):
            use()
    (logits,) = model.record(prompts_of(model)).read(Read("logits"))
    with torch.no_grad():
        own: Tensor = model.loaded.model(prompts_of(model).tokens).logits[:, -1]
    assert torch.allclose(logits.to(own), own, rtol=0, atol=1e-5)


def test_threads_share_a_model() -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    edits = [Edit("z", float(number), at=9, head=(1, number)) for number in range(6)]
    expected = [recording.run(edit, Read("logits"))[0] for edit in edits]
    wrong: list[int] = []

    def work() -> None:
        for _ in range(5):
            for number, edit in enumerate(edits):
                if not torch.equal(recording.run(edit, Read("logits"))[0], expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_recording_is_not_pickled() -> None:
    model = model_of()
    with pytest.raises(SurgeryError, match="cannot be pickled; save what read or run returns"):
        pickle.dumps(model.record(prompts_of(model)))


def test_load_takes_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no folder .*absent"):
        rebinding.load(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"got a LlamaForCausalLM.*rebinding\.wrap\(model, tokenizer\)"):
        rebinding.load(model_of().loaded.model)


def test_judge_refuses_a_model_that_its_name_does_not_stand_for() -> None:
    changed = rebinding.load("planted:pointer")
    with torch.no_grad():
        for parameter in changed.loaded.model.parameters():
            parameter.zero_()
    options = ["-k", "qk_cancels", "--no-store", "--samples", "8"]
    with pytest.raises(JudgeError, match=r"no row was judged(.|\n)*was announced with the fingerprint"):
        rebinding.judge(changed, options=options)
    narrow = rebinding.Model(replace(model_of().loaded, dtype="bfloat16"))
    with pytest.raises(ValueError, match=r"several dtypes \(bfloat16, float32\)"):
        rebinding.judge(changed, narrow)


# paths, maps and circuits


def test_paths_that_cannot_reach_the_readout_are_refused() -> None:
    model = model_of()
    pairs = Pairs(prompts_of(model), prompts_of(model, first=2))
    for at in ("early", "middle", 3):
        with pytest.raises(SurgeryError, match=r"nothing passes from .* to the readout.*freeze=False"):
            rebinding.patch_paths(model, pairs, at=at)
    last = rebinding.patch_paths(model, pairs, at=LENGTH - 1)
    assert (last["score"] == rebinding.patch_paths(model, pairs)["score"]).all()
    assert (rebinding.patch_paths(model, pairs, at="early", freeze=False)["score"].abs() > 1e-3).any()


def test_a_map_names_every_token() -> None:
    model = model_of()
    pairs = Pairs(prompts_of(model), prompts_of(model, first=2))
    rows = rebinding.trace(model, pairs, layers=[1], at=["early", 5, "readout"])
    assert rows.groupby(["place", "token"], observed=True).size().reset_index()[["place", "token"]].values.tolist() == [
        ["early", 3], ["readout", LENGTH - 1], ["token 5", 5],
    ]  # fmt: skip


def test_circuit_files_and_names(tmp_path: Path) -> None:
    with pytest.raises(CircuitError, match="by the name of a token"):
        Circuit.of({1: [(0, 0)]})
    owner = Owner("tiny", "a" * 64, 4, 6)
    file = tmp_path / "circuit.json"
    file.write_text(to_json(Circuit.of({"readout": [(0, 0)]}), owner))
    assert load_circuit(file, owner).unique == 1
    with pytest.raises(CircuitError, match=r"found on other weights of tiny.*another dtype"):
        load_circuit(file, Owner("tiny", "b" * 64, 4, 6))
    with pytest.raises(CircuitError, match=r"belongs to tiny .*not to small"):
        load_circuit(file, Owner("small", "b" * 64, 4, 6))
    file.write_text(json.dumps({"schema": 1, "nodes": [], "edges": []}))
    with pytest.raises(CircuitError, match="is a graph, not a circuit"):
        load_circuit(file, owner)
