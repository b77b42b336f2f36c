"""Where a procedure leaves open which token is read, or which tokens stand for an object, every candidate is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from claims.catalogue import claim
from rebinding.evidence import Request
from rebinding.experiments.ablation import Ablation
from rebinding.experiments.binding.request import Shifts
from rebinding.experiments.circuit.request import (
    Pruning,
    Stream,
    request_ablation,
    request_contributions,
    request_stream,
)
from rebinding.experiments.prompts import Stories
from rebinding.experiments.roles.request import Interchange
from rebinding.experiments.tokens import Answers, token_batch
from rebinding.experiments.unedited import Ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper.circuit import Circuit, save
from rebinding.paper.claim import Claim
from rebinding.paper.procedure import BUILTIN_PROCEDURES, EARLY, ProcedureName, builtin_procedure
from rebinding.planted import build
from rebinding.study.gates import Gates
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import STAGES, Settings
from rebinding.study.study import Study
from rebinding.task.prompts import AnswerSet, Encoded
from rebinding.task.words import OBJECTS
from rebinding.verdicts import GateFailed
from tests.claims.run_claims import save_model
from tests.close import agree, allowance
from tests.everyday import sampled
from tests.oracles.by_hand.requests_page import BelievingGates

COMPACT = claim("circuit.compact")
E_PRIME = claim("circuit.e_prime")
MINIMAL = claim("circuit.minimal")
RECOVERS = claim("circuit.recovers_accuracy")
N = 6


HEADS = Circuit(build("pointer").circuit)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Workbench:
    """A plant whose words each have a second token: that of another word."""
    workbench = Workbench(load("planted:pointer@llama"))
    token = workbench.prompts.encoder.answer_token

    def aliases(word: str) -> frozenset[int]:
        return frozenset({token(word), token(OBJECTS[(OBJECTS.index(word) + 1) % len(OBJECTS)])})

    monkeypatch.setattr(workbench.prompts.encoder, "alias_tokens", aliases)
    return workbench


def test_a_label_is_the_largest_of_its_tokens(bench: Workbench) -> None:
    """Against full forwards of the library's model: the label's logit, and its lead over the other objects."""
    prompts = bench.prompts
    stories = prompts.design("published")
    request = request_ablation(prompts, HEADS, stories, "published", n=N, comparison="random", answers="exp2_aliases")
    rows = bench.get(request).rows
    full = rows[rows["variant"] == "full"].sort_values("prompt")
    encoded = prompts.encode(request.prompts).prompts
    with torch.no_grad():
        logits = bench.loaded_model.model(token_batch(encoded)).logits[:, -1]  # (prompt, vocabulary)
    labels, leads = [], []
    for row, prompt in zip(logits, encoded, strict=True):
        scores = {
            word: max(float(row[token]) for token in prompts.encoder.alias_tokens(word))
            for word in prompt.prompt.story.state().values()
            if word is not None
        }
        labels.append(scores.pop(prompt.prompt.answer))
        leads.append(labels[-1] - max(scores.values()))
    assert agree(torch.tensor(full["label_logit"].to_numpy()), torch.tensor(labels, dtype=torch.float64))
    assert agree(torch.tensor(full["margin"].to_numpy()), torch.tensor(leads, dtype=torch.float64))


def test_the_rule_is_part_of_what_is_asked(bench: Workbench) -> None:
    """Two rules are two requests, and the answers differ where a word has several tokens."""
    prompts = bench.prompts
    encoded = prompts.encode(prompts.draw(prompts.design("published"), range(N))).prompts
    single, several = (prompts.answers(encoded, rule) for rule in ("continuation", "exp2_aliases"))
    assert (single.tokens.shape[-1], several.tokens.shape[-1]) == (1, 2)
    assert all(
        set(single_token.tolist()) < set(several_tokens.tolist())
        for single_token, several_tokens in zip(single.tokens[0], several.tokens[0], strict=True)
    )
    assert (single.lowest, several.lowest) == (False, True), "of equal logits the lowest token answers, as published"


@pytest.mark.parametrize("make", [request_contributions, request_stream])
@pytest.mark.parametrize("procedure", sampled(BUILTIN_PROCEDURES))
def test_answers_are_those_that_were_asked_for(
    make: Callable[..., Request], procedure: ProcedureName, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, conventions, rules = Stories.answers, builtin_procedure(procedure).circuit, []

    def noting(self: Stories, prompts: Sequence[Encoded], rule: AnswerSet = "continuation") -> Answers:
        rules.append(rule)
        return answers(self, prompts, rule)

    monkeypatch.setattr(Stories, "answers", noting)
    bench.get(make(bench.prompts, bench.prompts.design("published"), HEADS, 2, conventions=conventions))
    assert set(rules) == {conventions.answers}


@pytest.mark.slow
def test_each_procedure_asks_under_its_own_rule() -> None:
    study = Study.of(ModelUnderTest(parse_model("planted:pointer"), Settings((parse_model("planted:pointer"),))))
    study.ablate_circuit(RECOVERS)
    study.prunings(COMPACT)
    study.ablate_each_head(MINIMAL)
    requests = [use.request for use in study.log.used if isinstance(use.request, Ablation | Pruning)]
    rules = {(type(request).__name__, request.answers) for request in requests}
    assert rules == set(product(("Ablation", "Pruning"), ("exp2_aliases", "continuation")))


def test_words_are_the_answers_by_id() -> None:
    """Also where prompts were not asked for in their order."""
    spec = parse_model("planted:pointer@llama")
    model = ModelUnderTest(spec, Settings((spec,), device="cpu"))
    study, prompts = Study.of(model), model.session.prompts
    stories = prompts.design("published", split="test")
    evidence = study.log.get(model.session, Ability(prompts.draw(stories, (7, 3, 5))))
    assert study.words(evidence) == tuple(stories.prompt(number).answer for number in (3, 5, 7))
    assert len(set(study.words(evidence))) > 1


@pytest.mark.parametrize("token", sampled([STAGES, None]), ids=["found here", "declared"])
def test_a_circuit_and_its_stream_are_judged_on_the_same_stories(token: str | None) -> None:
    """And at the same means: where it was found here, on those that it was found on and at those of its pruning."""
    spec = parse_model("planted:pointer")
    study = Study.of(ModelUnderTest(spec, Settings((spec,), circuit=token, samples=6)))
    vars(study._circuits)["judged"] = HEADS  # not to search for it
    study.ablate_circuit(E_PRIME)
    study.patch_context_stream(E_PRIME)
    requests = [use.request for use in study.log.used if isinstance(use.request, Ablation | Stream)]
    stories = "published" if token is None else study.conventions(E_PRIME.controlled()).design
    assert [request.prompts.design for request in requests] == [stories] * 2
    assert requests[0].means == requests[1].means


K_REDIRECTS = claim("binding.k_redirects")
IS_POINTER = claim("roles.b_is_the_pointer")
READOUT_PROMPTS = 8
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
    model = ModelUnderTest(
        spec, Settings((spec,), device="cpu", dtype="float32", circuit=file, samples=READOUT_PROMPTS)
    )
    return Study.of(model, gates=gates)


@pytest.fixture(scope="module")
def llama(model_folder: Path) -> Study:
    """A plant has no answer before the ':', and here it is believed to have one."""
    return make_study(f"llama3.1-8b={model_folder / 'model'}", model_folder / "circuit.json", BelievingGates)


def places(study: Study, claim: Claim) -> dict[str, Study]:
    return dict(study.at_readouts(claim))


def test_both_tokens_are_read_only_on_published_llama(llama: Study, model_folder: Path) -> None:
    gemma = make_study(f"gemma2-9b={model_folder / 'model'}", model_folder / "circuit.json")
    plant = make_study("planted:pointer@llama", None)
    for row in (IS_POINTER, K_REDIRECTS):
        assert [*places(llama, row)] == NAMES
        for study, other in ((llama, row.controlled()), (gemma, row), (plant, row)):
            assert [*places(study, other)] == NAMES[:1]


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
