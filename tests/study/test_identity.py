"""A request is known by everything that its evidence depends on, and evidence says what was asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rebinding.evidence import EvidenceError, PromptSet, Request
from rebinding.evidence.store import Store
from rebinding.experiments.tracing.summary import at
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import given
from rebinding.planted import build
from rebinding.study import anywhere, binding, circuit, contributions, roles, static, stream, tracing
from rebinding.study.bench import Bench
from rebinding.subjects import Subject, load


@pytest.fixture(scope="module")
def subject() -> Subject:
    return load("planted:pointer")


WAY = given("published").tracing


@pytest.fixture(scope="module")
def bench(subject: Subject) -> Bench:
    return Bench(subject)


@pytest.fixture(scope="module")
def heads() -> Circuit:
    return Circuit(build("pointer").circuit)


@pytest.fixture(scope="module")
def requests(bench: Bench, heads: Circuit) -> list[Request]:
    return requested(bench, heads)


def requested(bench: Bench, heads: Circuit) -> list[Request]:
    """One of every kind."""
    drawn = bench.design("published")
    way = circuit.of_a_plant(given("controlled").circuit, "controlled")
    pairs = circuit.noise_pairs(bench, way, 4)
    return [
        tracing.traced(bench, drawn, "swap_only", ("swap_asked", "readout"), 4, WAY),
        tracing.mentioned(bench, drawn, "context_and_swap", "context_asked", "swap_asked", 4, WAY),
        tracing.diagnosed(bench, drawn, 4, WAY),
        circuit.ability(bench, drawn, 4),
        circuit.link(pairs, circuit.STAGES["B"], heads.group("A"), way),
        circuit.ablated(bench, heads, drawn, "published", n=4, beside="groups"),
        circuit.pruned(bench, heads, way, n=4),
        contributions.contributed(bench, drawn, heads, 4, way=given("published").circuit),
        static.without_swap(bench, drawn, heads, 4),
        stream.carried_on(bench, drawn, heads, 4, way=given("published").circuit),
        anywhere.crossed(bench, drawn, heads, 4),
        binding.exchanged(bench, drawn, heads, 4, way=given("controlled").binding),
        roles.interchanged(bench, heads, drawn, "pointer", 4, given("published").roles),
        binding.shifted(bench, heads, "published", "isolated", given("published").binding, n=4, directions=4, draws=1),
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


def test_another_chat_form_is_another_address(subject: Subject, tmp_path: Path) -> None:
    """The same weights, design and ids in another chat form: other tokens, and another place in the store."""
    shelf = Store(tmp_path).shelf(subject=subject.fingerprint, dtype="float32")
    plain, wrapped = Bench(subject, shelf), Bench(subject, shelf)
    wrapped.__dict__["encoder"] = _longer(subject)
    asked = [circuit.ability(one, one.design("published"), 3) for one in (plain, wrapped)]
    assert asked[0].prompts.ids == asked[1].prompts.ids
    assert asked[0].prompts.tokens != asked[1].prompts.tokens
    plain.measured(asked[0])
    held = [
        shelf.of("rebinding.study.circuit", "rebinding.surgery.torch_surgeon", settings={}).key(one.key)
        for one in asked
    ]
    assert [(tmp_path / "ability" / f"{key}.parquet").is_file() for key in held] == [True, False]


def test_a_run_repeated_on_others_shares_no_prompt(subject: Subject, requests: list[Request], heads: Circuit) -> None:
    """`--first K`: what is judged is judged on other prompts; what discovery and pruning see stays what it was."""
    for before, after in zip(requests, requested(Bench(subject, first=100), heads), strict=True):
        if before.KIND.name in ("paths", "pruning"):
            assert before.prompts.ids == after.prompts.ids
        else:
            assert not set(before.prompts.ids) & set(after.prompts.ids), before.KIND.name
            assert len(before.prompts.ids) == len(after.prompts.ids)


def _longer(subject: Subject) -> Any:
    """An encoder that says one token more before every prompt, as a chat form would."""
    encoder = subject.encoder()
    encode = encoder.encode

    def changed(prompts: Any, cut: int = 0) -> Any:
        found = encode(prompts, cut)
        shifted = [{role: at + 1 for role, at in one.roles.items()} for one in found]
        return [replace(one, ids=(one.ids[0], *one.ids), roles=at) for one, at in zip(found, shifted, strict=True)]

    pytest.MonkeyPatch().setattr(encoder, "encode", changed)
    return encoder


def test_a_request_for_other_tokens_is_refused(bench: Bench) -> None:
    asked = circuit.ability(bench, bench.design("published"), 3)
    elsewhere = replace(asked, prompts=replace(asked.prompts, tokens="0" * 64))
    with pytest.raises(ValueError, match="other tokens here than in the request"):
        bench.measured(elsewhere)


def test_another_bench_computes_the_same_from_the_request_alone(subject: Subject, requests: list[Request]) -> None:
    """Nothing of the bench that made a request is needed to answer it."""
    for request in (requests[3], requests[7]):
        found = Bench(subject).measured(request)
        assert found.settings["request"] == dict(request.plain)
        assert found.settings["key"] == request.key
        assert found.rows[request.KIND.unit].nunique() == request.n


def test_evidence_says_design_ids_and_circuit(bench: Bench, heads: Circuit) -> None:
    asked = circuit.ablated(bench, heads, bench.design("published"), "counterbalanced", n=3, beside="random")
    told = bench.measured(asked).settings["request"]
    assert told["prompts"]["design"] == "published"
    assert told["prompts"]["ids"] == list(asked.prompts.ids)
    assert told["means"]["prompts"]["design"] == "counterbalanced"
    assert [tuple(one) for one in told["circuit"]] == [tuple(one) for one in heads.heads]


def test_a_circuit_says_what_it_was_found_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {}
    monkeypatch.setattr(circuit, "discover_by", lambda *_, **named: told.update(named))
    way = given("published").circuit
    circuit.discovered(circuit.noise_pairs(bench, way, 3), way, print)
    assert told["described"] == {"design": "published", "noise": "rotation", "prompts": 3}


def test_columns_are_held_to_their_kind(bench: Bench) -> None:
    asked = circuit.ability(bench, bench.design("published"), 3)
    rows = bench.measured(asked).rows
    with pytest.raises(EvidenceError, match=r"lacks the columns \['hit'\] and has \['hits'\]"):
        asked.KIND.evidence(rows.rename(columns={"hit": "hits"}), {})


def test_roles_are_those_of_every_prompt(bench: Bench) -> None:
    """Where a role stands elsewhere in each prompt, each prompt has rows at its own token, and none is dropped."""
    drawn = bench.design("counterbalanced")
    asked = tracing.traced(bench, drawn, "context_and_swap", ("context_asked", "readout"), 9, WAY)
    rows = at(bench.measured(asked).rows, "context_asked")
    own = {}
    for item, prompt in zip(bench.drawn(asked.prompts).items, bench.drawn(asked.prompts).prompts, strict=True):
        own[item.id] = prompt.roles["context_asked"]
    assert rows["prompt"].nunique() == 9
    assert len(set(rows["token"])) > 1
    assert all(
        own[number] == token for number, token in zip(rows["prompt"], rows["token"], strict=True) if number in own
    )
    layers = rows["layer"].nunique()
    assert rows.pivot(index="layer", columns="prompt", values="hit").notna().to_numpy().sum() == layers * 9


def test_a_prompt_set_is_usual_where_nothing_is_said() -> None:
    assert PromptSet("published", (0,), "t", "w", 1, "plain").facets == {"design": "published", "boxes": 3}
