"""Names of models, sizes of requests, and what a request and its evidence depend on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rebinding.evidence import EvidenceError, PromptSet, Request
from rebinding.evidence.sources import code_hash
from rebinding.evidence.store import Store, cache_key
from rebinding.experiments.attention import request_shaped_attention
from rebinding.experiments.binding.request import request_exchange, request_shifts
from rebinding.experiments.circuit.request import (
    request_ablation,
    request_contributions,
    request_pruning,
    request_stream,
)
from rebinding.experiments.paths import summary as discovery
from rebinding.experiments.paths.request import STAGE_BY_NAME, conventions_of_plant, request_paths
from rebinding.experiments.paths.summary import discover_circuit
from rebinding.experiments.prompts import Stories, draw_noise_pairs
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.search.request import request_crossings
from rebinding.experiments.static import request_stories_without_swap
from rebinding.experiments.tracing.request import (
    Answered,
    first_id,
    request_diagnostic,
    request_map,
    request_mention,
    request_stored_state,
)
from rebinding.experiments.tracing.summary import at
from rebinding.experiments.unedited import Ability, request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import checkpoint
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build
from rebinding.study.gates import EvidenceLog, Gates
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import PLANTED, ModelUnderTest
from rebinding.study.settings import Settings
from tests.engines.kinds import KINDS, make_request


@pytest.fixture(scope="module")
def loaded_model() -> LoadedModel:
    return load("planted:pointer")


CONVENTIONS = builtin_procedure("published").tracing


@pytest.fixture(scope="module")
def bench(loaded_model: LoadedModel) -> Workbench:
    return Workbench(loaded_model)


@pytest.fixture(scope="module")
def heads() -> Circuit:
    return Circuit(build("pointer").circuit)


@pytest.fixture(scope="module")
def requests(bench: Workbench, heads: Circuit) -> list[Request]:
    return make_requests(bench.prompts, heads)


def make_requests(prompts: Stories, heads: Circuit) -> list[Request]:
    """One of most kinds."""
    stories, ids = (
        prompts.design("published"),
        range(first_id(prompts, CONVENTIONS), first_id(prompts, CONVENTIONS) + 4),
    )
    conventions = conventions_of_plant(builtin_procedure("controlled").circuit, "controlled")
    pairs = draw_noise_pairs(prompts, conventions, 4)
    shifts = builtin_procedure("published").binding
    return [
        request_map(prompts, stories, ids, "swap_only", ("swap_asked", "readout"), CONVENTIONS),
        request_mention(prompts, stories, ids, "context_and_swap", "context_asked", "swap_asked", CONVENTIONS),
        request_diagnostic(prompts, stories, 4, CONVENTIONS),
        request_stored_state(prompts, stories, heads, 4, conventions=CONVENTIONS),
        request_ability(prompts, stories, 4),
        request_paths(pairs, STAGE_BY_NAME["B"], heads.group("A"), conventions),
        request_ablation(prompts, heads, stories, "published", n=4, comparison="groups"),
        request_pruning(prompts, heads, conventions, n=4),
        request_contributions(prompts, stories, heads, 4, conventions=builtin_procedure("published").circuit),
        request_stories_without_swap(prompts, stories, heads, 4),
        request_stream(prompts, stories, heads, 4, conventions=builtin_procedure("published").circuit),
        request_shaped_attention(prompts, stories, heads, 4, conventions=conventions),
        request_crossings(prompts, stories, heads, 4),
        request_exchange(prompts, stories, heads, 4, conventions=builtin_procedure("controlled").binding),
        request_interchange(prompts, heads, stories, "pointer", 4, builtin_procedure("published").roles),
        request_shifts(prompts, heads, "published", "isolated", shifts, n=4, directions=4, draws=1),
        Answered(prompts.draw(stories, ids, ("tracing", "swap_only")), CONVENTIONS.rule),
    ]


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


def test_kinds_do_not_share_keys_or_labels(requests: list[Request]) -> None:
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


def test_a_run_repeated_on_others_shares_no_prompt(
    loaded_model: LoadedModel, requests: list[Request], heads: Circuit
) -> None:
    """`--skip-prompts N`: claims are judged on other prompts; discovery and pruning keep theirs."""
    for before, after in zip(
        requests, make_requests(Workbench(loaded_model, skip_prompts=100).prompts, heads), strict=True
    ):
        if before.KIND.name in ("paths", "pruning"):
            assert before.prompts.ids == after.prompts.ids
        else:
            assert not set(before.prompts.ids) & set(after.prompts.ids), before.KIND.name
            assert len(before.prompts.ids) == len(after.prompts.ids)


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


def test_another_bench_computes_the_same_from_the_request_alone(
    loaded_model: LoadedModel, requests: list[Request]
) -> None:
    """Nothing of the bench that made a request is needed to answer it."""
    for request in (requests[3], requests[7]):
        evidence = Workbench(loaded_model).get(request)
        assert evidence.settings["request"] == dict(request.plain)
        assert evidence.settings["key"] == request.key
        assert evidence.rows[request.KIND.unit].nunique() == request.n


def test_evidence_says_design_ids_and_circuit(bench: Workbench, heads: Circuit) -> None:
    stories = bench.prompts.design("published")
    request = request_ablation(bench.prompts, heads, stories, "counterbalanced", n=3, comparison="random")
    stored = bench.get(request).settings["request"]
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


def test_columns_are_held_to_their_kind(bench: Workbench) -> None:
    request = request_ability(bench.prompts, bench.prompts.design("published"), 3)
    rows = bench.get(request).rows
    with pytest.raises(EvidenceError, match=r"missing columns \['hit'\], unknown columns \['hits'\]"):
        request.KIND.evidence(rows.rename(columns={"hit": "hits"}), {})


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


def folder(path: Path, layers: int) -> Path:
    paper = checkpoint("llama3.2-3b")
    config = {"num_hidden_layers": layers, "num_attention_heads": paper.heads, "torch_dtype": "float16"}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", ["planted:pointer", "llama3.2-3b", "shape:llama3.2-3b"])
def test_the_dtype_is_part_of_what_is_known_of_a_model(name: str) -> None:
    """A plant's truth, and the paper's numbers, are of one precision; a shape has neither."""
    assert parse_model(name).fixed_dtype == (not name.startswith("shape:"))


def test_a_folder_keeps_its_dtype_if_it_has_the_shape_of_the_paper(tmp_path: Path) -> None:
    full = folder(tmp_path / "full", checkpoint("llama3.2-3b").layers)
    small = folder(tmp_path / "small", 4)
    assert parse_model(f"llama3.2-3b={full}").fixed_dtype
    assert not parse_model(f"llama3.2-3b={small}").fixed_dtype
    assert not parse_model(str(full)).fixed_dtype
    assert [parse_model(f"llama3.2-3b={path}").dtype for path in (full, small)] == ["bfloat16", "float16"]


def test_as_many_prompts_are_asked_as_there_are_boxes_for() -> None:
    """Stories of five boxes are another task, and of a plant another model."""
    gates = Gates(ModelUnderTest(parse_model("planted:pointer"), Settings(())), EvidenceLog())
    for boxes, size in ((3, "able"), (5, "able_wide")):
        gates.log.used.clear()
        gates.check_ability(boxes)
        (request,) = (use.request for use in gates.log.used)
        assert isinstance(request, Ability)
        assert (request.prompts.boxes, len(request.prompts.ids)) == (boxes, PLANTED[size])


def test_a_plants_number_is_printed_with_two_digits() -> None:
    """Of 300 prompts, or ten draws: as the paper prints its own."""
    number = ModelUnderTest(parse_model("planted:pointer"), Settings(())).printed("accuracy.circuit")
    assert number is not None
    assert (number.half_width, number.n, number.draws, number.kind, number.source) == (
        0.005,
        300,
        10,
        "accuracy",
        "planted",
    )
    assert number.printed == f"{number.value:.2f}"


@pytest.mark.parametrize(("name", "sets"), [("planted:pointer", 6), ("gemma2-9b", 10)])
def test_sets_of_directions(name: str, sets: int) -> None:
    spec = parse_model(name)
    model = ModelUnderTest(spec, Settings((spec,), device="cpu"))
    assert model.conventions("controlled").binding.batches == sets
    assert model.conventions("published") == builtin_procedure("published"), "one set is not more than six"
