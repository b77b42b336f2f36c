"""A request is known by everything that its evidence depends on, and evidence says what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rebinding.evidence import EvidenceError, PromptSet, Request
from rebinding.evidence.store import Store
from rebinding.experiments.binding.request import request_exchange, request_shifts
from rebinding.experiments.circuit.request import (
    request_ablation,
    request_contributions,
    request_pruning,
    request_stream,
)
from rebinding.experiments.paths import discovery
from rebinding.experiments.paths.discovery import discover_circuit
from rebinding.experiments.paths.request import STAGE_BY_NAME, conventions_of_plant, draw_noise_pairs, request_paths
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.roles.request import request_interchange
from rebinding.experiments.search.request import request_crossings
from rebinding.experiments.static.request import without_swap
from rebinding.experiments.tracing.request import Answered, first_id, request_diagnostic, request_map, request_mention
from rebinding.experiments.tracing.summary import at
from rebinding.experiments.unedited.request import request_ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel, load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import given
from rebinding.planted import build


@pytest.fixture(scope="module")
def loaded_model() -> LoadedModel:
    return load("planted:pointer")


WAY = given("published").tracing


@pytest.fixture(scope="module")
def bench(loaded_model: LoadedModel) -> Workbench:
    return Workbench(loaded_model)


@pytest.fixture(scope="module")
def heads() -> Circuit:
    return Circuit(build("pointer").circuit)


@pytest.fixture(scope="module")
def requests(bench: Workbench, heads: Circuit) -> list[Request]:
    return requested(bench.prompts, heads)


def requested(prompts: Prompts, heads: Circuit) -> list[Request]:
    """One of every kind."""
    drawn, ids = prompts.design("published"), range(first_id(prompts, WAY), first_id(prompts, WAY) + 4)
    conventions = conventions_of_plant(given("controlled").circuit, "controlled")
    pairs = draw_noise_pairs(prompts, conventions, 4)
    shifts = given("published").binding
    return [
        request_map(prompts, drawn, ids, "swap_only", ("swap_asked", "readout"), WAY),
        request_mention(prompts, drawn, ids, "context_and_swap", "context_asked", "swap_asked", WAY),
        request_diagnostic(prompts, drawn, 4, WAY),
        request_ability(prompts, drawn, 4),
        request_paths(pairs, STAGE_BY_NAME["B"], heads.group("A"), conventions),
        request_ablation(prompts, heads, drawn, "published", n=4, beside="groups"),
        request_pruning(prompts, heads, conventions, n=4),
        request_contributions(prompts, drawn, heads, 4, conventions=given("published").circuit),
        without_swap(prompts, drawn, heads, 4),
        request_stream(prompts, drawn, heads, 4, conventions=given("published").circuit),
        request_crossings(prompts, drawn, heads, 4),
        request_exchange(prompts, drawn, heads, 4, conventions=given("controlled").binding),
        request_interchange(prompts, heads, drawn, "pointer", 4, given("published").roles),
        request_shifts(prompts, heads, "published", "isolated", shifts, n=4, directions=4, draws=1),
        Answered(prompts.draw(drawn, ids, ("tracing", "swap_only")), WAY.rule),
    ]


def changed(value: Any) -> Iterator[Any]:
    """The value with one leaf of it made another."""
    if is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            for other in changed(getattr(value, one.name)):
                yield _unchecked(value, one.name, other)
    elif isinstance(value, tuple) and value:
        for place, part in enumerate(value):
            for other in changed(part):
                parts = [*value[:place], other, *value[place + 1 :]]
                yield type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        yield value[:-1] if not hasattr(value, "_fields") else value._replace(**{value._fields[0]: "other"})
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    else:
        yield "other" if value is None else f"{value}!"


def _unchecked(value: Any, name: str, other: Any) -> Any:
    """A copy with another field, even where such a value could not be made."""
    copy = object.__new__(type(value))
    copy.__dict__.update({one.name: getattr(value, one.name) for one in fields(value)} | {name: other})
    return copy


def test_nothing_in_a_request_is_left_out_of_its_key(requests: list[Request]) -> None:
    for request in requests:
        others = list(changed(request))
        keys = {one.key for one in others}
        assert len(others) > 15
        assert request.key not in keys, request.KIND.name
        assert len(keys) == len({repr(one) for one in others})


def test_kinds_do_not_share_keys_or_labels(requests: list[Request]) -> None:
    assert len({one.key for one in requests}) == len({one.label for one in requests}) == len(requests)
    assert all(one.key[:8] in one.label and one.facets["design"] for one in requests)


def test_another_chat_form_is_another_address(loaded_model: LoadedModel, tmp_path: Path) -> None:
    """The same weights, design and ids in another chat form: other tokens, and another place in the store."""
    shelf = Store(tmp_path).shelf(loaded_model=loaded_model.fingerprint, dtype="float32")
    plain, wrapped = (
        Workbench(loaded_model, shelf),
        Workbench(loaded_model, shelf, prompts=Prompts(_longer(loaded_model))),
    )
    asked = [request_ability(one.prompts, one.prompts.design("published"), 3) for one in (plain, wrapped)]
    assert asked[0].prompts.ids == asked[1].prompts.ids
    assert asked[0].prompts.tokens != asked[1].prompts.tokens
    plain.get(asked[0])
    held = [
        shelf.of("rebinding.experiments.unedited.measure", "rebinding.surgery.torch_surgeon", settings={}).key(one.key)
        for one in asked
    ]
    assert held == [one.address(request)[1] for one, request in zip((plain, wrapped), asked, strict=True)]
    assert [(tmp_path / "ability" / f"{key}.parquet").is_file() for key in held] == [True, False]


def test_a_run_repeated_on_others_shares_no_prompt(
    loaded_model: LoadedModel, requests: list[Request], heads: Circuit
) -> None:
    """`--first K`: what is judged is judged on other prompts; what discovery and pruning see stays what it was."""
    for before, after in zip(requests, requested(Workbench(loaded_model, first=100).prompts, heads), strict=True):
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
        found = encode(prompts, cut)
        shifted = [{role: at + 1 for role, at in one.roles.items()} for one in found]
        return [replace(one, ids=(one.ids[0], *one.ids), roles=at) for one, at in zip(found, shifted, strict=True)]

    pytest.MonkeyPatch().setattr(encoder, "encode", changed)
    return encoder


def test_a_request_for_other_tokens_is_refused(bench: Workbench) -> None:
    asked = request_ability(bench.prompts, bench.prompts.design("published"), 3)
    elsewhere = replace(asked, prompts=replace(asked.prompts, tokens="0" * 64))
    with pytest.raises(ValueError, match="other tokens here than in the request"):
        bench.get(elsewhere)


def test_another_bench_computes_the_same_from_the_request_alone(
    loaded_model: LoadedModel, requests: list[Request]
) -> None:
    """Nothing of the bench that made a request is needed to answer it."""
    for request in (requests[3], requests[7]):
        found = Workbench(loaded_model).get(request)
        assert found.settings["request"] == dict(request.plain)
        assert found.settings["key"] == request.key
        assert found.rows[request.KIND.unit].nunique() == request.n


def test_evidence_says_design_ids_and_circuit(bench: Workbench, heads: Circuit) -> None:
    drawn = bench.prompts.design("published")
    asked = request_ablation(bench.prompts, heads, drawn, "counterbalanced", n=3, beside="random")
    told = bench.get(asked).settings["request"]
    assert told["prompts"]["design"] == "published"
    assert told["prompts"]["ids"] == list(asked.prompts.ids)
    assert told["means"]["prompts"]["design"] == "counterbalanced"
    assert [tuple(one) for one in told["circuit"]] == [tuple(one) for one in heads.heads]


def test_a_circuit_says_what_it_was_found_on(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(discovery, "discover_by", lambda *_, **named: told.update(named))
    conventions = given("published").circuit
    discover_circuit(draw_noise_pairs(bench.prompts, conventions, 3), conventions, print)
    assert told["described"] == {"design": "published", "noise": "rotation", "prompts": 3}


def test_columns_are_held_to_their_kind(bench: Workbench) -> None:
    asked = request_ability(bench.prompts, bench.prompts.design("published"), 3)
    rows = bench.get(asked).rows
    with pytest.raises(EvidenceError, match=r"lacks the columns \['hit'\] and has \['hits'\]"):
        asked.KIND.evidence(rows.rename(columns={"hit": "hits"}), {})


def test_roles_are_those_of_every_prompt(bench: Workbench) -> None:
    """Where a role stands elsewhere in each prompt, each prompt has rows at its own token, and none is dropped."""
    drawn = bench.prompts.design("counterbalanced")
    asked = request_map(bench.prompts, drawn, range(9), "context_and_swap", ("context_asked", "readout"), WAY)
    rows = at(bench.get(asked).rows, "context_asked")
    own = {number: prompt.roles["context_asked"] for number, prompt, _ in bench.prompts.encode(asked.prompts).pairs}
    assert set(own) == set(rows["prompt"])
    assert rows["prompt"].nunique() == 9
    assert len(set(rows["token"])) > 1
    assert all(own[number] == token for number, token in zip(rows["prompt"], rows["token"], strict=True))
    layers = rows["layer"].nunique()
    assert rows.pivot(index="layer", columns="prompt", values="hit").notna().to_numpy().sum() == layers * 9


def test_a_prompt_set_is_usual_where_nothing_is_said() -> None:
    assert PromptSet("published", (0,), "t", "plain").facets == {"design": "published", "boxes": 3}
