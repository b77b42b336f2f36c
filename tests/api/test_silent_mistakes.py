"""Mistakes that would give a number without a word: each is refused, or gives the right number."""

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
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import rebinding
from rebinding import Circuit, Edit, JudgeError, NothingEdited, Pairs, Read
from rebinding.api.model import check_length
from rebinding.models import ModelError
from rebinding.paper.circuit import CircuitError, Owner, to_json
from rebinding.paper.circuit import load as load_circuit
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import SurgeryError
from rebinding.task.prompts import PromptError
from tests.api.small import GROUP, LENGTH, model_of, prompts_of

HEAD = (1, 2)
TEXTS = ["Box K contains the boot. Box D contains the rock.", "Box M contains the rock. Box D contains the boot."]


# prompts


def test_a_mapping_of_a_tokenizer_is_no_list_of_prompts() -> None:
    model = model_of()
    with pytest.raises(PromptError, match=r"a mapping of input_ids, .*attention_mask.*Give the texts"):
        model.prompts(model.tokenizer(TEXTS, return_tensors="pt"))
    with pytest.raises(PromptError, match=r"rows is a list of mappings.*\[\{\.\.\.\}\]"):
        model.fill("Box {box}", {"box": "K"})


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_is_refused(side: str) -> None:
    model = model_of()
    tokenizer = model.tokenizer
    ids: list[int] = tokenizer(TEXTS[0])["input_ids"]
    padding = [tokenizer.pad_token_id] * 2
    padded = [*ids, *padding] if side == "right" else [*padding, *ids]
    with pytest.raises(PromptError, match=r"prompt 1 (begins|ends) with padding.*padding=False"):
        model.prompts([[*ids, *ids[-2:]], padded])


def test_an_end_token_is_not_the_readout() -> None:
    """A tokenizer that appends one: texts end with their own last token; ids that end so are refused."""
    model, appending = model_of(), model_of()
    tokenizer = appending.tokenizer
    bos, eos = tokenizer.bos_token, tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A {eos}", special_tokens=[(bos, tokenizer.bos_token_id), (eos, tokenizer.eos_token_id)]
    )
    assert tokenizer(TEXTS[0])["input_ids"][-1] == tokenizer.eos_token_id
    assert torch.equal(appending.prompts(TEXTS).tokens, model.prompts(TEXTS).tokens)
    filled = appending.fill("Box {box} contains the {thing}", [{"box": "K", "thing": "boot"}])
    assert filled.at("thing").tolist() == filled.at("readout").tolist()
    with pytest.raises(PromptError, match="an end token, which would be the readout"):
        appending.prompts(tokenizer(TEXTS)["input_ids"])


def test_prompts_are_chosen_by_numbers_and_masks() -> None:
    prompts = model_of().prompts([[5, 6, 7], [6, 7, 8], [7, 8, 9]], answers=[[1, 2], [2, 3], [3, 4]])
    pairs = Pairs(prompts, prompts[[1, 2, 0]])
    for part in ([0, 2], torch.tensor([0, 2]), torch.tensor([True, False, True]), slice(None, None, 2)):
        assert torch.equal(pairs[part].clean.tokens, prompts.tokens[[0, 2]])
        assert pairs[part].clean.answers.tolist() == [[1, 2], [3, 4]]
        assert torch.equal(pairs[part].noise.tokens, prompts.tokens[[1, 0]])
    with pytest.raises(PromptError, match="one flag for each of 3 prompts; got 2"):
        prompts[[True, False]]
    with pytest.raises(PromptError, match="numbers 0 to 2, a slice or a mask"):
        prompts[[3]]


def test_a_generator_is_a_list_of_prompts() -> None:
    model = model_of()
    assert torch.equal(model.prompts(text for text in TEXTS).tokens, model.prompts(TEXTS).tokens)


def test_words_of_a_name_are_compared_with_the_prompt() -> None:
    """`far@noun+1` is the token after `noun` where it says `far`."""
    model = model_of()
    template = "Box {box} contains the {thing}. Box D contains the {other}."
    prompts = model.fill(template, [{"box": "K", "thing": "boot", "other": "rock"}] * 2)
    assert prompts.at("contains@box+1").tolist() == [3, 3]
    assert prompts.at("token@box+1").tolist() == [3, 3]  # a name of position-free discovery for tokens that differ
    with pytest.raises(PromptError, match=r"no position 'holds@box\+1' \(in prompt 0 that token is 'contains'\)"):
        prompts.at("holds@box+1")
    with pytest.raises(PromptError, match="no position"):
        prompts.at("contains@box-9")
    with pytest.raises(PromptError, match="no prompt has"):
        prompts.having("holds@box+1")


def test_longer_prompts_than_a_model_has_positions_for() -> None:
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 1}
    model = GPT2LMHeadModel(GPT2Config(n_positions=16, **sizes))
    check_length(model, 16)
    with pytest.raises(PromptError, match="prompts of 17 tokens: this model has positions for 16"):
        check_length(model, 17)


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
        Edit("z", value, at=1, head=HEAD)


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
            assert torch.equal(value, clean)
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
    with pytest.raises(ModelError, match=r"got a LlamaForCausalLM.*save_pretrained\(FOLDER\)"):
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


def test_the_tokenizer_of_these_tests_pads() -> None:
    tokenizer = build_tokenizer()
    assert None not in (tokenizer.pad_token_id, tokenizer.eos_token_id)
