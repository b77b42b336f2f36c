"""Names of models, sizes of requests, and what a request and its evidence depend on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rebinding
from rebinding.evidence import PromptSet
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Store, cache_key
from rebinding.experiments.circuit.request import (
    request_ablation,
)
from rebinding.experiments.paths import summary as discovery
from rebinding.experiments.paths.summary import discover_circuit
from rebinding.experiments.prompts import Stories, draw_noise_pairs
from rebinding.experiments.tracing.request import (
    first_id,
    request_map,
)
from rebinding.experiments.tracing.summary import at
from rebinding.experiments.unedited import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, ModelError, load
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import checkpoint
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest, Sizes
from rebinding.study.settings import Settings
from tests.engines.kinds import KINDS, make_request
from tests.models.folders import change_config, save_tiny


@pytest.fixture(scope="module")
def loaded_model() -> LoadedModel:
    return load("planted:pointer")


CONVENTIONS = builtin_procedure("published").tracing


@pytest.fixture(scope="module")
def bench(loaded_model: LoadedModel) -> Workbench:
    return Workbench(loaded_model)


def changed(value: Any) -> Iterator[Any]:
    """The value with one leaf of it made another."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            for leaf in changed(getattr(value, field.name)):
                yield _unchecked(value, field.name, leaf)
    elif isinstance(value, tuple) and value:
        for place, part in enumerate(value):
            for leaf in changed(part):
                parts = [*value[:place], leaf, *value[place + 1 :]]
                yield type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        yield value[:-1] if not hasattr(value, "_fields") else value._replace(**{value._fields[0]: "other"})
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    else:
        yield "other" if value is None else f"{value}!"


def _unchecked(value: Any, name: str, leaf: Any) -> Any:
    """A copy with another field, even where such a value could not be made."""
    copy = object.__new__(type(value))
    copy.__dict__.update({field.name: getattr(value, field.name) for field in fields(value)} | {name: leaf})
    return copy


@pytest.mark.parametrize("name", KINDS)
def test_nothing_in_a_request_is_left_out_of_its_key(bench: Workbench, name: str) -> None:
    """Of every kind (`tests/engines` holds the list complete)."""
    request = make_request(name, bench.prompts)
    variants = list(changed(request))
    keys = {variant.key for variant in variants}
    assert len(variants) > 10
    assert request.key not in keys
    assert len(keys) == len({repr(variant) for variant in variants})


def test_kinds_do_not_share_keys_or_labels(bench: Workbench) -> None:
    requests = [make_request(name, bench.prompts) for name in KINDS]
    assert len({request.key for request in requests}) == len({request.label for request in requests}) == len(requests)
    assert all(request.key[:8] in request.label and request.facets["design"] for request in requests)


def test_another_chat_form_is_another_address(loaded_model: LoadedModel, tmp_path: Path) -> None:
    """The same weights, design and ids in another chat form: other tokens, and another place in the store."""
    store = Store(tmp_path)
    plain, wrapped = (
        Workbench(loaded_model, store),
        Workbench(loaded_model, store, prompts=Stories(_longer(loaded_model))),
    )
    benches = plain, wrapped
    pair = [request_ability(bench.prompts, bench.prompts.design("published"), 3) for bench in benches]
    assert pair[0].prompts.ids == pair[1].prompts.ids
    assert pair[0].prompts.tokens != pair[1].prompts.tokens
    plain.get(pair[0])
    modules = ("rebinding.experiments.unedited", "rebinding.surgery.torch_surgeon")
    code = code_hash(*modules)
    keys = [cache_key(loaded_model.fingerprint, "float32", code, request.key) for request in pair]
    assert keys == [bench.address(request)[1] for bench, request in zip(benches, pair, strict=True)]
    assert [(tmp_path / "ability" / f"{key}.parquet").is_file() for key in keys] == [True, False]


WITH_IDS = ("answered", "tracing", "mention", "step", "losses")
"""Kinds whose ids are an argument."""


def test_a_run_repeated_on_others_shares_no_prompt(loaded_model: LoadedModel, bench: Workbench) -> None:
    """`--skip-prompts N`: claims are judged on other prompts; discovery and pruning keep theirs."""
    others = Workbench(loaded_model, skip_prompts=100).prompts
    for name in KINDS.keys() - set(WITH_IDS):
        before, after = (make_request(name, prompts).prompts.ids for prompts in (bench.prompts, others))
        assert len(before) == len(after)
        assert bool(set(before) & set(after)) == (name in ("paths", "pruning")), name
    assert first_id(others, CONVENTIONS) == first_id(bench.prompts, CONVENTIONS) + 100


def test_a_run_in_another_wording_asks_for_other_prompts(loaded_model: LoadedModel, bench: Workbench) -> None:
    """`--wording NAME`: every request of stories, also one that another process draws again from the request."""
    others = Workbench(loaded_model).prompts
    others.wording = "keeps"
    for name in KINDS.keys() - set(WITH_IDS):
        before, after = (make_request(name, prompts).prompts for prompts in (bench.prompts, others))
        assert (before.ids, before.wording, after.wording) == (after.ids, "published", "keeps"), name
        assert before.tokens != after.tokens
        assert after.facets["wording"] == "keeps"
        again = Workbench(loaded_model).prompts.encode(after).prompts
        assert all(" keeps the " in prompt.text for prompt in again)


def test_a_study_has_the_wording_of_its_run() -> None:
    spec = parse_model("planted:pointer")
    model = ModelUnderTest(spec, Settings((spec,), wording="holds"))
    assert model.session.prompts.design("published").wording == "holds"


def _longer(loaded_model: LoadedModel) -> Any:
    """An encoder that says one token more before every prompt, as a chat form would."""
    encoder = loaded_model.encoder()
    encode = encoder.encode

    def changed(prompts: Any, cut: int = 0) -> Any:
        return [
            replace(
                encoded, ids=(encoded.ids[0], *encoded.ids), roles={role: at + 1 for role, at in encoded.roles.items()}
            )
            for encoded in encode(prompts, cut)
        ]

    pytest.MonkeyPatch().setattr(encoder, "encode", changed)
    return encoder


def test_a_request_for_other_tokens_is_refused(bench: Workbench) -> None:
    request = request_ability(bench.prompts, bench.prompts.design("published"), 3)
    other_tokens = replace(request, prompts=replace(request.prompts, tokens="0" * 64))
    with pytest.raises(ValueError, match="other tokens here than in the request"):
        bench.get(other_tokens)


def test_a_request_says_design_ids_and_circuit(bench: Workbench) -> None:
    heads = Circuit(build("pointer").circuit)
    stories = bench.prompts.design("published")
    request = request_ablation(bench.prompts, heads, stories, "counterbalanced", n=3, comparison="random")
    stored = request.plain
    assert stored["prompts"]["design"] == "published"
    assert stored["prompts"]["ids"] == list(request.prompts.ids)
    assert stored["means"]["prompts"]["design"] == "counterbalanced"
    assert [tuple(head) for head in stored["circuit"]] == [tuple(head) for head in heads.heads]


def test_a_circuit_says_what_it_was_found_on(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {}
    monkeypatch.setattr(discovery, "discover_by", lambda *_, **keywords: arguments.update(keywords))
    conventions = builtin_procedure("published").circuit
    discover_circuit(draw_noise_pairs(bench.prompts, conventions, 3), conventions, print)
    assert arguments["extra_settings"] == {"design": "published", "noise": "rotation", "prompts": 3}


def test_roles_are_those_of_every_prompt(bench: Workbench) -> None:
    """Where a role stands elsewhere in each prompt, each prompt has rows at its own token, and none is dropped."""
    stories = bench.prompts.design("counterbalanced")
    request = request_map(
        bench.prompts, stories, range(9), "context_and_swap", ("context_asked", "readout"), CONVENTIONS
    )
    rows = at(bench.get(request).rows, "context_asked")
    asked_tokens = {
        number: prompt.roles["context_asked"] for number, prompt, _ in bench.prompts.encode(request.prompts).pairs
    }
    assert set(asked_tokens) == set(rows["prompt"])
    assert rows["prompt"].nunique() == 9
    assert len(set(rows["token"])) > 1
    assert all(asked_tokens[number] == token for number, token in zip(rows["prompt"], rows["token"], strict=True))
    layers = rows["layer"].nunique()
    assert rows.pivot(index="layer", columns="prompt", values="hit").notna().to_numpy().sum() == layers * 9


def test_a_prompt_set_is_usual_where_nothing_is_said() -> None:
    assert PromptSet("published", (0,), "t", "plain").facets == {"design": "published", "boxes": 3}


def test_the_dtype_is_part_of_what_is_known_of_a_model(tmp_path: Path) -> None:
    """A plant's truth, and the paper's numbers, are of one precision; a shape has neither. A folder keeps its dtype if
    it has the shape of the paper's model."""
    paper = checkpoint("llama3.2-3b")
    for name, layers in (("full", paper.layers), ("small", 4)):
        config = {"num_hidden_layers": layers, "num_attention_heads": paper.heads, "torch_dtype": "float16"}
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    full, small = (f"llama3.2-3b={tmp_path / name}" for name in ("full", "small"))
    assert all(parse_model(name).fixed_dtype for name in ("planted:pointer", "llama3.2-3b", full))
    assert not any(parse_model(name).fixed_dtype for name in ("shape:llama3.2-3b", small, str(tmp_path / "full")))
    assert [parse_model(name).dtype for name in (full, small)] == ["bfloat16", "float16"]


def test_the_public_interface_loads_in_the_dtype_of_the_commands(tmp_path: Path) -> None:
    """A folder in its saved one; what is given wins."""
    folder = save_tiny(tmp_path / "half")
    change_config(folder, dtype="bfloat16")
    assert parse_model(str(folder)).dtype == "bfloat16"
    assert rebinding.load(folder).loaded.dtype == "bfloat16"
    assert rebinding.load(folder, dtype="float32").loaded.dtype == "float32"
    assert rebinding.load("planted:pointer").loaded.dtype == "float32"


@pytest.mark.parametrize("settings", [{"remote": True}, {"engine": SimpleNamespace(is_local=False)}])
def test_claims_about_other_tasks_need_the_model_in_this_process(settings: Any) -> None:
    with pytest.raises(ModelError, match="leave out --remote and --engine"):
        ModelUnderTest(parse_model("planted:pointer"), Settings((), **settings)).open()


def test_the_papers_models_are_judged_on_as_much_as_the_paper_says() -> None:
    """Path patching on 100 prompts, 200 random directions; planted models have fewer of both."""
    sizes, of_plant = Sizes(None, None), ModelUnderTest(parse_model("planted:pointer"), Settings(())).sizes
    assert (sizes.of("paths"), sizes.draws, sizes.directions(1)) == (100, 200, 100)
    assert of_plant.of("paths") < 100
    assert of_plant.draws < 200


def test_a_plants_number_is_printed_with_two_digits() -> None:
    """Of 300 prompts, or ten draws: as the paper prints its own."""
    number = ModelUnderTest(parse_model("planted:pointer"), Settings(())).printed("accuracy.circuit")
    assert number is not None
    assert (number.half_width, number.n, number.draws) == (0.005, 300, 10)
    assert (number.kind, number.source, number.printed) == ("accuracy", "planted", f"{number.value:.2f}")


@pytest.mark.parametrize(("name", "sets"), [("planted:pointer", 5), ("gemma2-9b", 10)])
def test_sets_of_directions(name: str, sets: int) -> None:
    spec = parse_model(name)
    model = ModelUnderTest(spec, Settings((spec,), device="cpu"))
    assert model.conventions("controlled").binding.batches == sets
    assert model.conventions("published") == builtin_procedure("published"), "one set is not more than six"
