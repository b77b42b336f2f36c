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
from rebinding.experiments.unedited import Ability
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper.circuit import Circuit, save
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import EARLY
from rebinding.planted import build
from rebinding.study.gates import Gates
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study
from rebinding.verdicts import GateFailed
from tests.claims.run_claims import save_model
from tests.close import allowance
from tests.oracles.by_hand.requests_page import BelievingGates

K_REDIRECTS = claim("binding.k_redirects")
IS_POINTER = claim("roles.b_is_the_pointer")
N = 8
NAMES = ["at ':'", "two tokens before ':'"]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder = tmp_path_factory.mktemp("model")
    plant = build("pointer", "llama")
    folder = save_model(plant.model, plant.tokenizer, model_folder / "model")
    save(Circuit(plant.circuit), owner_of(load(str(folder))), model_folder / "circuit.json")
    return model_folder


def make_study(name: str, circuit: Path | None, gates: type[Gates] = Gates) -> Study:
    spec = parse_model(name)
    file = None if circuit is None else str(circuit)
    model = ModelUnderTest(spec, Settings((spec,), device="cpu", dtype="float32", circuit=file, samples=N))
    return Study.of(model, gates=gates)


@pytest.fixture(scope="module")
def llama(model_folder: Path) -> Study:
    """A plant has no answer before the ':', and here it is believed to have one."""
    return make_study(f"llama3.1-8b={model_folder / 'model'}", model_folder / "circuit.json", BelievingGates)


def places(study: Study, claim: Claim) -> dict[str, Study]:
    return dict(study.at_readouts(claim))


@pytest.mark.parametrize("claim", [IS_POINTER, K_REDIRECTS], ids=lambda claim: claim.id)
def test_both_tokens_are_read_only_on_published_llama(llama: Study, model_folder: Path, claim: Claim) -> None:
    gemma = make_study(f"gemma2-9b={model_folder / 'model'}", model_folder / "circuit.json")
    assert [*places(llama, claim)] == NAMES
    assert [*places(llama, claim.controlled())] == NAMES[:1]
    assert [*places(gemma, claim)] == NAMES[:1]
    assert [*places(make_study("planted:pointer@llama", None), claim)] == NAMES[:1]


@pytest.mark.parametrize("claim", [IS_POINTER, K_REDIRECTS], ids=lambda claim: claim.id)
def test_every_prompt_ends_two_tokens_earlier(llama: Study, claim: Claim) -> None:
    """Those that are judged and those that directions are the mean of; what is known of one place is not of the other,
    and is kept apart."""
    sets = []
    for study in places(llama, claim).values():
        llama.log.used.clear()
        study.roles(claim, "pointer") if claim is IS_POINTER else study.binding(claim)
        (request,) = (use.request for use in llama.log.used if use.supports_verdict)
        assert isinstance(request, Interchange | Shifts)
        slots = [slot for batch in request.batches for slot in batch.slots] if isinstance(request, Shifts) else []
        sets.append([request.prompts, *slots])
    assert len(llama.log.evidence) >= len(sets)
    for full_prompt, short in zip(*sets, strict=True):
        assert (full_prompt.cut, short.cut, short.facets["cut"]) == (0, EARLY, EARLY)
        pairs = zip(*(llama._model.session.prompts.encode(part).prompts for part in (full_prompt, short)), strict=True)
        for full, cut in pairs:
            assert cut.ids == full.ids[:-EARLY]
            assert cut.roles == {**full.roles, "readout": full.roles["readout"] - EARLY}


def test_a_short_prompt_is_the_whole_one_so_far(llama: Study) -> None:
    """What a group's attention changes is measured from the logits that the whole prompt has two tokens before its
    end."""
    session = llama._model.session
    by_place = places(llama, IS_POINTER)
    by_place[NAMES[0]].roles(IS_POINTER, "pointer")  # so that the whole prompts are known
    evidence = by_place[NAMES[1]].roles(IS_POINTER, "pointer")
    model = session.loaded_model.model
    assert isinstance(model, PreTrainedModel)
    procedure = llama.procedure(IS_POINTER).roles
    (full,) = (
        request.prompts
        for request in llama.log.evidence
        if isinstance(request, Interchange) and request.prompts.cut == 0
    )
    assert procedure.places == "published"
    for number, prompt, _ in session.prompts.encode(full).pairs:
        with torch.no_grad():
            logits = model(torch.tensor([prompt.ids])).logits[0, -1 - EARLY]
        rows = evidence.rows[evidence.rows["prompt"] == number]
        for token, before in zip(rows["token"], rows["before"], strict=True):
            assert before == pytest.approx(float(logits[token]), abs=allowance(logits))


def test_evidence_two_tokens_earlier_is_other_evidence(llama: Study) -> None:
    read_roles = partial(Study.roles, claim=IS_POINTER, counterfactual="pointer")
    full, short = (read_roles(study).rows["before"].to_numpy() for study in places(llama, IS_POINTER).values())
    assert abs(full - short).max() > 0.5


def test_readout_before_the_answer_is_refused(llama: Study, model_folder: Path) -> None:
    """Nor is it asked for. Whether it has one is held against the same prompts, so much shorter, and with either form
    of a word."""
    unable = make_study(f"llama3.1-8b={model_folder / 'model'}", model_folder / "circuit.json")
    for row, read_roles in ((IS_POINTER, partial(Study.roles, counterfactual="pointer")), (K_REDIRECTS, Study.binding)):
        with pytest.raises(GateFailed, match="above_chance"):
            read_roles(places(unable, row)[NAMES[1]], claim=row)
    (able,) = {use.request for use in unable.log.used}
    assert isinstance(able, Ability)
    assert (able.prompts.cut, able.answers) == (EARLY, "exp2_aliases")


def test_prompts_that_are_short_are_drawn_again_from_their_request(llama: Study, model_folder: Path) -> None:
    (request,) = (
        request
        for request in llama.log.evidence
        if isinstance(request, OnPrompts) and request.prompts.cut and request.KIND.name == "roles"
    )
    fresh = make_study(f"llama3.1-8b={model_folder / 'model'}", model_folder / "circuit.json")
    second, before = (study._model.session.prompts.encode(request.prompts).prompts for study in (fresh, llama))
    assert second == before
