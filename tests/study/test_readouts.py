"""Where it is not known which token was read, both are: at the ':' and two tokens before it, on models asked as Llama.

A plant's weights stand for a model of the paper; so the embedded tokenizer writes Llama's chat form.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from claims.catalogue import claim
from rebinding.evidence import OnPrompts
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.roles.request import Interchange
from rebinding.experiments.unedited.request import Ability
from rebinding.models import load
from rebinding.paper.circuit import Circuit, save
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import EARLY
from rebinding.planted import build
from rebinding.study.gates import Gates
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest, owner_of
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed
from tests.claims.runs import folder_of
from tests.close import allowance
from tests.oracles.by_hand.requests_page import BelievingGates

K_REDIRECTS = claim("binding.k_redirects")
IS_POINTER = claim("roles.b_is_the_pointer")
N = 8
NAMES = ["at ':'", "two tokens before ':'"]


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    there = tmp_path_factory.mktemp("model")
    plant = build("pointer", "llama")
    folder = folder_of(plant.model, plant.tokenizer, there / "model")
    save(Circuit(plant.circuit), owner_of(load(str(folder))), there / "circuit.json")
    return there


def study_of(name: str, circuit: Path | None, gates: type[Gates] = Gates) -> Study:
    asked = parse_model(name)
    file = None if circuit is None else str(circuit)
    case = ModelUnderTest(asked, Settings((asked,), device="cpu", dtype="float32", circuit=file, samples=N))
    return Study.of(case, gates=gates)


@pytest.fixture(scope="module")
def llama(there: Path) -> Study:
    """A plant has no answer before the ':', and here it is believed to have one."""
    return study_of(f"llama3.1-8b={there / 'model'}", there / "circuit.json", BelievingGates)


def places(study: Study, claim: Claim) -> dict[str, Study]:
    procedure = study.procedure(claim)
    return dict(study.at_readouts(procedure.roles if claim.id.startswith("roles.") else procedure.binding))


@pytest.mark.parametrize("claim", [IS_POINTER, K_REDIRECTS], ids=lambda claim: claim.id)
def test_both_are_read_of_llama_as_published_alone(llama: Study, there: Path, claim: Claim) -> None:
    gemma = study_of(f"gemma2-9b={there / 'model'}", there / "circuit.json")
    assert [*places(llama, claim)] == NAMES
    assert [*places(llama, claim.controlled())] == NAMES[:1]
    assert [*places(gemma, claim)] == NAMES[:1]
    assert [*places(study_of("planted:pointer@llama", None), claim)] == NAMES[:1]


@pytest.mark.parametrize("claim", [IS_POINTER, K_REDIRECTS], ids=lambda claim: claim.id)
def test_every_prompt_ends_two_tokens_earlier(llama: Study, claim: Claim) -> None:
    """Those that are judged and those that directions are the mean of; what is known of one place is not of the other,
    and is kept apart."""
    sets = []
    for study in places(llama, claim).values():
        llama.log.used.clear()
        study.roles(claim, "pointer") if claim is IS_POINTER else study.binding(claim)
        (asked,) = (use.request for use in llama.log.used if use.ground)
        assert isinstance(asked, Interchange | Shifts)
        more = [one for batch in asked.batches for one in batch.slots] if isinstance(asked, Shifts) else []
        sets.append([asked.prompts, *more])
    assert len(llama.log.known) >= len(sets)
    for whole, short in zip(*sets, strict=True):
        assert (whole.cut, short.cut, short.facets["cut"]) == (0, EARLY, EARLY)
        drawn = zip(*(llama._case.session.prompts.encode(one).prompts for one in (whole, short)), strict=True)
        for full, cut in drawn:
            assert cut.ids == full.ids[:-EARLY]
            assert cut.roles == {**full.roles, "readout": full.roles["readout"] - EARLY}


def test_a_short_prompt_is_the_whole_one_so_far(llama: Study) -> None:
    """What a group's attention changes is measured from the logits that the whole prompt has two tokens before its
    end."""
    session = llama._case.session
    by_place = places(llama, IS_POINTER)
    by_place[NAMES[0]].roles(IS_POINTER, "pointer")  # so that the whole prompts are known
    found = by_place[NAMES[1]].roles(IS_POINTER, "pointer")
    model = session.loaded_model.model
    assert isinstance(model, PreTrainedModel)
    procedure = llama.procedure(IS_POINTER).roles
    (whole,) = (one.prompts for one in llama.log.known if isinstance(one, Interchange) and one.prompts.cut == 0)
    assert procedure.places == "published"
    for number, own, _ in session.prompts.encode(whole).pairs:
        with torch.no_grad():
            logits = model(torch.tensor([own.ids])).logits[0, -1 - EARLY]
        rows = found.rows[found.rows["prompt"] == number]
        for token, before in zip(rows["token"], rows["before"], strict=True):
            assert before == pytest.approx(float(logits[token]), abs=allowance(logits))


def test_evidence_two_tokens_earlier_is_other_evidence(llama: Study) -> None:
    ask = partial(Study.roles, claim=IS_POINTER, counterfactual="pointer")
    whole, short = (ask(one).rows["before"].to_numpy() for one in places(llama, IS_POINTER).values())
    assert abs(whole - short).max() > 0.5


def test_nothing_is_read_where_the_model_has_no_answer_yet(llama: Study, there: Path) -> None:
    """Nor is it asked for. Whether it has one is held against the same prompts, so much shorter, and with either form
    of a word."""
    asked = study_of(f"llama3.1-8b={there / 'model'}", there / "circuit.json")
    for one, ask in ((IS_POINTER, partial(Study.roles, counterfactual="pointer")), (K_REDIRECTS, Study.binding)):
        with pytest.raises(GateFailed, match="above_chance"):
            ask(places(asked, one)[NAMES[1]], claim=one)
    (able,) = {use.request for use in asked.log.used}
    assert isinstance(able, Ability)
    assert (able.prompts.cut, able.answers) == (EARLY, "exp2_aliases")


def test_prompts_that_are_short_are_drawn_again_from_their_request(llama: Study, there: Path) -> None:
    (asked,) = (
        one for one in llama.log.known if isinstance(one, OnPrompts) and one.prompts.cut and one.KIND.name == "roles"
    )
    other = study_of(f"llama3.1-8b={there / 'model'}", there / "circuit.json")
    again, before = (study._case.session.prompts.encode(asked.prompts).prompts for study in (other, llama))
    assert again == before
