"""Which tokens stand for an object where circuits are evaluated and pruned: as published any of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from claims.catalogue import claim
from rebinding.evidence import Request
from rebinding.experiments.ablation import Ablation
from rebinding.experiments.circuit.request import (
    Pruning,
    Stream,
    request_ablation,
    request_contributions,
    request_stream,
)
from rebinding.experiments.prompts import Stories
from rebinding.experiments.tokens import Answers, token_batch
from rebinding.experiments.unedited import Ability
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import BUILTIN_PROCEDURES, ProcedureName, builtin_procedure
from rebinding.planted import build
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import STAGES, Settings
from rebinding.study.study import Study
from rebinding.task.prompts import AnswerSet, Encoded
from rebinding.task.words import OBJECTS
from tests.close import agree
from tests.everyday import sampled

COMPACT = claim("circuit.compact")
E_PRIME = claim("circuit.e_prime")
MINIMAL = claim("circuit.minimal")
RECOVERS = claim("circuit.recovers_accuracy")
N = 6


def declared_circuit() -> Circuit:
    """The heads of the plant."""
    return Circuit(build("pointer").circuit)


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
    prompts, heads = bench.prompts, declared_circuit()
    stories = prompts.design("published")
    request = request_ablation(prompts, heads, stories, "published", n=N, comparison="random", answers="exp2_aliases")
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
    bench.get(make(bench.prompts, bench.prompts.design("published"), declared_circuit(), 2, conventions=conventions))
    assert set(rules) == {conventions.answers}


@pytest.mark.slow
def test_each_procedure_asks_under_its_own_rule() -> None:
    model = ModelUnderTest(parse_model("planted:pointer"), Settings((parse_model("planted:pointer"),)))
    study = Study.of(model)
    study.ablate_circuit(RECOVERS)
    study.prunings(COMPACT)
    study.ablate_each_head(MINIMAL)
    requests = [use.request for use in study.log.used]
    rules = {
        (type(request).__name__, request.answers) for request in requests if isinstance(request, Ablation | Pruning)
    }
    assert rules == {
        ("Ablation", "exp2_aliases"),
        ("Pruning", "exp2_aliases"),
        ("Ablation", "continuation"),
        ("Pruning", "continuation"),
    }


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
    study = Study.of(ModelUnderTest(spec, Settings((spec,), circuit=token)))
    vars(study._circuits)["judged"] = declared_circuit()  # not to search for it
    study.ablate_circuit(E_PRIME)
    study.patch_context_stream(E_PRIME)
    requests = [use.request for use in study.log.used if isinstance(use.request, Ablation | Stream)]
    stories = "published" if token is None else study.conventions(E_PRIME.controlled()).design
    assert [request.prompts.design for request in requests] == [stories] * 2
    assert requests[0].means == requests[1].means
