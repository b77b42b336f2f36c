"""Every architecture that transformers offers as a causal language model is loaded or refused by an error of ours, and
the table says which. A refusal says first what the model does, in the words of the field.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from rebinding.models import ModelError, errors, load
from rebinding.models.errors import SIGNS, find_reason
from rebinding.models.selfcheck import check
from tests.families.models import USUAL, tiny
from tests.models.census import TYPES, build
from tests.models.census_outcomes import COMMAND, Outcome, examine, read_table, summarise_certificate
from tests.models.census_page import PAGE, PURPOSES, render
from tests.models.folders import save

TABLE = read_table()
MOST_UNBUILT = 5
"""Types of transformers 5.23 of which the library makes no small model."""


def choose_members(outcomes: Mapping[str, Outcome]) -> dict[str, list[str]]:
    """Types that have every feature of an anatomy and every class of refusal between them, with what each one adds."""
    covered: set[str] = set()
    members = {}
    for kind, outcome in outcomes.items():
        if added := [
            name for name in (*outcome.kind.split("; "), outcome.error or outcome.status) if name not in covered
        ]:
            members[kind] = added
            covered.update(added)
    return members


def compare(new: Mapping[str, object], old: Mapping[str, object]) -> None:
    """Fail if a type is not as in the table."""
    lines = [f"{kind}: {new[kind]}\n    in the table: {old.get(kind)}" for kind in new if new[kind] != old.get(kind)]
    assert not lines, "\n".join([f"What follows has changed. If it is right, run `{COMMAND}`.", *lines])


def test_loading_ends_in_an_error_of_ours(tmp_path: Path) -> None:
    """Doge once ended in an error of torch. The error says what to do next, and is the same whether a folder is loaded
    or a model is checked."""
    model = build("doge")
    save(model, tmp_path / "doge")
    with pytest.raises(ModelError, match=r"rebinding/surgery/\w+\.py") as refusal:
        load(str(tmp_path / "doge"))
    with pytest.raises(type(refusal.value), match=r"rebinding/surgery/\w+\.py"):
        check(model)


def test_table_has_every_type() -> None:
    """Types come and go with a new version of transformers."""
    difference = set(TYPES) ^ set(TABLE.outcomes)
    assert not difference, f"{sorted(difference)} are not both in transformers and in the table: run `{COMMAND}`"


def test_page_is_the_table() -> None:
    assert PAGE.read_text("utf-8") == render(TABLE), f"run `{COMMAND} --table`"


def test_families_refused_on_purpose_are_refused() -> None:
    kinds = [kind for purpose in PURPOSES for kind in purpose.families.values()]
    assert {kind: TABLE.outcomes[kind].status for kind in kinds} == dict.fromkeys(kinds, "refused")


def test_most_types_are_built() -> None:
    """A type that is not built says nothing about an edit."""
    assert sum(outcome.status == "not built" for outcome in TABLE.outcomes.values()) <= MOST_UNBUILT


@pytest.mark.parametrize("kind", choose_members(TABLE.outcomes))
def test_a_type_of_each_kind_is_as_in_the_table(kind: str) -> None:
    compare({kind: examine(kind)}, TABLE.outcomes)


@pytest.mark.slow
def test_every_type_is_as_in_the_table() -> None:
    compare({kind: examine(kind) for kind in TYPES}, TABLE.outcomes)


@pytest.mark.slow
def test_every_certificate_is_as_in_the_table() -> None:
    """Deviations are rounding, and differ from machine to machine; a certificate fails if one is above 1."""
    compare({kind: summarise_certificate(kind) for kind in TABLE.certificates}, TABLE.certificates)


def test_every_accepted_type_is_certified() -> None:
    accepted = {kind for kind, outcome in TABLE.outcomes.items() if outcome.status == "accepted"}
    assert accepted == set(TABLE.certificates)
    assert {kind: entry.failures for kind, entry in TABLE.certificates.items() if entry.failures} == {}


def test_a_change_is_named() -> None:
    """With the command that writes the table again."""
    new, old = {"llama": Outcome("accepted")}, {"llama": Outcome("refused", error="UnsupportedArchitecture")}
    with pytest.raises(
        AssertionError, match=f"(?s){COMMAND}.*llama: accepted.*in the table: refused, UnsupportedArchitecture"
    ):
        compare(new, old)


REASONS = {
    "mamba": "MambaForCausalLM mixes tokens by state-space layers (MambaBlock). ",
    "rwkv": "RwkvForCausalLM mixes tokens by recurrent layers (RwkvBlock). ",
    "falcon_h1": "FalconH1ForCausalLM mixes tokens by state-space layers (FalconH1Mixer) beside attention. ",
    "lfm2": "Lfm2ForCausalLM mixes neighbouring tokens by convolutions (Lfm2ShortConv) beside attention. ",
    "deepseek_v3": "DeepseekV3ForCausalLM keeps the keys and values of all heads in",
    "bitnet": "BitNetForCausalLM norms the outputs of all heads together. ",
    "afmoe": "AfmoeForCausalLM multiplies the outputs of heads by a gate. ",
    "bert": "BertLMHeadModel is built like BERT, an encoder. ",
    "bloom": "BloomForCausalLM computes attention in code of its own, ",
}


@pytest.mark.parametrize("kind", REASONS)
def test_refusal_begins_with_the_reason(kind: str) -> None:
    """What the check missed comes after it, and then what to do."""
    with pytest.raises(errors.UnsupportedArchitecture) as refusal:
        check(build(kind))
    assert refusal.type is errors.UnsupportedArchitecture
    assert str(refusal.value).startswith(REASONS[kind])
    assert len(str(refusal.value)) > len(REASONS[kind]) + 50


def test_supported_families_have_no_sign() -> None:
    """If a hybrid that is supported is refused, its linear attention is not why."""
    models = {"qwen3_next": build("qwen3_next"), **{family: tiny(family) for family in USUAL}}
    assert {name: find_reason(model) for name, model in models.items()} == dict.fromkeys(models)


def test_every_sign_explains_a_refusal_of_the_census() -> None:
    """A sign that explains nothing is out of date."""
    reasons = [outcome.reason for outcome in read_table().outcomes.values() if outcome.status == "refused"]
    starts = [reason.partition(" (")[0] for reason in SIGNS.values()]
    assert [start for start in starts if not any(reason.startswith(start) for reason in reasons)] == []
