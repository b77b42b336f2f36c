"""Find a circuit, at the roles of a story or at all positions, and evaluate a circuit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, overload

import pandas as pd
import torch

from rebinding.api.model import Model
from rebinding.api.patching import checked_heads, noise_pairs
from rebinding.api.prompts import Pairs, Prompts
from rebinding.experiments.ablation import evaluate as evaluate_circuits
from rebinding.experiments.ablation import mean_z
from rebinding.experiments.paths.measure import discover as discover_by_stages
from rebinding.experiments.paths.request import PAPER
from rebinding.experiments.random_draws import Match, draw_circuits
from rebinding.experiments.search.graph import Graph
from rebinding.experiments.search.pairs import SearchPairs, first_changes
from rebinding.experiments.search.request import Screen, SearchSettings
from rebinding.experiments.search.search import MeasuredSteps, Search
from rebinding.experiments.tokens import Answers, full_model
from rebinding.paper.circuit import Circuit, CircuitHead
from rebinding.surgery.calling import hold
from rebinding.surgery.sites import Head, SurgeryError, check_word
from rebinding.task.prompts import PromptError, TokenizedPrompt
from rebinding.task.text import ANSWER_ROLE, FUNCTIONS, names_by_function, names_by_place

FEWEST = 4
"""Pairs of a search; with fewer no effect is significant."""
DRAWS = 20
"""Random circuits that an evaluation compares with."""
EVERYWHERE = "every token"
"""The role of heads that are in a circuit at all tokens."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How often the right answer has the largest logit among its candidates.

    `model` is the accuracy of the unedited model, `circuit` that of the circuit alone with all other heads set to their
    means, `random` those of random circuits with as many heads at each position of each layer. `rows` has the logit,
    the margin over the best other candidate, hit, and probability of the answer, circuit by circuit and prompt by
    prompt.
    """

    model: float
    circuit: float
    random: tuple[float, ...]
    rows: pd.DataFrame = field(repr=False)


@overload
def discover(model: Model, pairs: Pairs, *, positions: Literal["roles"] = "roles") -> Circuit: ...
@overload
def discover(
    model: Model,
    pairs: Pairs,
    *,
    positions: Literal["all"],
    share: float | None = None,
    alpha: float | None = None,
    min_attention: float | None = None,
    screen: Screen | None = None,
    block: int | None = None,
    minutes: float | None = None,
    report: Callable[[str], object] | None = None,
) -> Graph: ...
def discover(
    model: Model,
    pairs: Pairs,
    *,
    positions: Literal["roles", "all"] = "roles",
    share: float | None = None,
    alpha: float | None = None,
    min_attention: float | None = None,
    screen: Screen | None = None,
    block: int | None = None,
    minutes: float | None = None,
    report: Callable[[str], object] | None = None,
) -> Circuit | Graph:
    """Find a circuit by path patching, as `rebinding discover --positions roles` or `all` does.

    `"roles"`: the paper's five stages, each at the tokens of its roles in stories of the box task; returns a `Circuit`.
    Every pair needs a `question_box`, `swap_partner` and `context_partner`, as those of the design `partner_second`
    have.

    `"all"`: all heads at all tokens, backwards from the logits, on pairs of any task; returns a `Graph`, whose
    `circuit()` is the circuit. The search keeps effects on the score (the right answer's logit minus the mean of the
    other candidates') that differ significantly from 0 (error rate `alpha` a step, 0.01) and are at least `share`
    (0.02) of what the noise prompts lose. Each effect that it measures is exact. It does not measure all: it skips
    tokens that no receiver gives `min_attention` (0.01), and by default (`screen="first-order"`) senders whose effect
    is small by a first-order estimate. `screen="none"` with `min_attention=0` skips only what cannot have an effect. It
    computes `block` pairs (12) at once and calls `report` with a line after each step. After `minutes` it ends with
    what it has (`graph.settings["finished"]` is then false).
    """
    check_word("positions", positions, ("roles", "all"))
    if len(pairs) < FEWEST:
        raise PromptError(
            f"{len(pairs)} pairs: no effect is significant on so few; give {FEWEST} or more (36 are usual)"
        )
    given = {"share": share, "alpha": alpha, "min_attention": min_attention, "screen": screen, "block": block}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if positions == "all":
        with hold(model.loaded.model):
            return _search(model, pairs, SearchSettings(**settings), minutes, report or (lambda line: None))
    if settings or minutes is not None or report is not None:
        raise SurgeryError(
            "share, alpha, min_attention, screen, block, minutes and report belong to the search at all positions; add"
            " positions='all', or leave them out"
        )
    roles = list(dict.fromkeys(role for stage in PAPER for role in (stage.sender, stage.at) if role is not None))
    lacking = [role for role in roles if not _is_in_all(role, pairs)]
    if lacking:
        raise PromptError(
            f"positions='roles' searches at {', '.join(roles)}, and some pairs have no {' and no '.join(lacking)}. Take"
            " stories of the design 'partner_second', pairs.having(...), or positions='all' for prompts of your own"
        )
    return discover_by_stages(model.surgeon, noise_pairs(pairs, roles), extra_settings={"model": model.name}).circuit


def _is_in_all(role: str, pairs: Pairs) -> bool:
    """Whether every prompt of every pair has a role."""
    return role in pairs.clean.positions and role in pairs.noise.positions


def _search(
    model: Model, pairs: Pairs, settings: SearchSettings, minutes: float | None, report: Callable[[str], object]
) -> Graph:
    searched = search_pairs(pairs)
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    steps = MeasuredSteps(model.surgeon, searched, settings.block)
    return Search(searched, settings, steps, deadline, report).graph({"model": model.name})


def evaluate(
    model: Model,
    circuit: Circuit | Graph | Sequence[Head],
    prompts: Prompts,
    *,
    means: Prompts | None = None,
    draws: int = DRAWS,
    match: Match = "role_and_layer",
) -> Evaluation:
    """Evaluate a circuit alone: every other head, at every token, gets its mean over the prompts `means`.

    A list of heads is a circuit of these heads at all tokens. Means are token by token, so both sets of prompts have
    one length. By default they are over `prompts` themselves; take prompts whose answers are balanced over positions,
    or the means carry a part of the answer. The `draws` random circuits have as many other heads at each position of
    each layer; with `match="role"` at each position, which layers with few other heads need.
    """
    check_word("match", match, get_args(Match))
    averaged = prompts if means is None else means
    if averaged.length != prompts.length:
        raise PromptError(f"means are token by token: over prompts of {averaged.length} tokens, for {prompts.length}")
    if len(averaged.tokens.unique(dim=0)) < 2:
        raise PromptError(
            "the means would be the values of one prompt, not an ablation; give means over several prompts"
        )
    table, tokenized = prompts.candidates(2), list(prompts.tokenized)
    if isinstance(circuit, Graph):
        circuit = circuit.circuit()
    is_everywhere = not isinstance(circuit, Circuit)
    if not isinstance(circuit, Circuit):
        if not circuit or len({*map(tuple, circuit)}) < len(circuit):
            raise SurgeryError(
                f"a circuit is a list of heads (layer, head), each once, and at least one; got {circuit}"
            )
        circuit = Circuit(tuple(CircuitHead("", *head, EVERYWHERE) for head in checked_heads(circuit, model)))
    circuit.check(model.anatomy.n_layers, model.anatomy.n_heads)
    for role in dict.fromkeys(head.role for head in circuit.heads if not is_everywhere):
        prompts.at(role)  # raises where a prompt lacks it
    sets = {"circuit": circuit}
    if draws:
        random_circuits = draw_circuits(circuit, model.anatomy.heads, draws=draws, match=match, exclude=True)
        sets |= {f"random {number}": other for number, other in enumerate(random_circuits)}
    if is_everywhere:
        sets = {name: at_all_tokens(heads, prompts.length) for name, heads in sets.items()}
        tokenized = [with_token_roles(prompt) for prompt in tokenized]
    answers = Answers(table[:, :, None], torch.zeros(len(prompts), dtype=torch.long))
    ids = range(len(prompts))
    averages = mean_z(model.surgeon, list(averaged.tokenized))
    ablated = evaluate_circuits(model.surgeon, tokenized, answers, ids, sets, averages, mean_set="own").rows
    rows = pd.concat([full_model(model.surgeon, tokenized, answers, ids).rows, ablated], ignore_index=True)
    hits = rows.groupby("circuit", sort=False)["hit"].mean()
    random = tuple(float(hits[name]) for name in sets if name != "circuit")
    return Evaluation(float(hits["full model"]), float(hits["circuit"]), random, rows)


def at_all_tokens(circuit: Circuit, length: int) -> Circuit:
    """The heads of a circuit at each token of prompts of one length, by the names of `with_token_roles`."""
    tokens = range(length)
    return Circuit(
        tuple(CircuitHead(head.group, head.layer, head.head, f"token {at}") for head in circuit.heads for at in tokens)
    )


def with_token_roles(prompt: TokenizedPrompt) -> TokenizedPrompt:
    """A prompt whose tokens have their numbers as names too."""
    numbers = {f"token {at}": at for at in range(len(prompt))}
    return TokenizedPrompt(prompt.text, prompt.ids, {**prompt.roles, **numbers}, prompt.tokenizer)


def search_pairs(pairs: Pairs) -> SearchPairs:
    """Pairs as the search takes them: with a name for every token.

    A position that is the same token in every prompt names this token and, by distance, those around it. A position
    that differs between prompts is a function: it names its token in each prompt.
    """
    clean, noise = pairs.clean.tokenized, pairs.noise.tokenized
    identity = torch.arange(pairs.clean.length).expand(len(pairs), -1)  # (pair, token)
    match = identity if pairs.match is None else pairs.match
    own = [name for name in pairs.clean.positions if name not in (*FUNCTIONS, ANSWER_ROLE)]
    fixed = {name: clean[0].roles[name] for name in own if len({prompt.roles[name] for prompt in clean}) == 1}
    places = names_by_place(fixed, _shared_pieces(pairs.clean))
    return SearchPairs(
        tuple(range(len(pairs))), clean, noise, pairs.clean.candidates(2), match,
        first_changes(clean, noise, match.tolist()), tuple(places),
        tuple(_functions(prompt.roles, places, [name for name in own if name not in fixed]) for prompt in clean),
        pairs.clean.strata,
    )  # fmt: skip


def _shared_pieces(prompts: Prompts) -> list[str]:
    """The tokens of the first prompt as text; `token` for one that differs between prompts."""
    varies = (prompts.tokens != prompts.tokens[:1]).any(dim=0).tolist()
    return ["token" if differs else piece for piece, differs in zip(prompts.tokenized[0].pieces, varies, strict=True)]


def _functions(roles: dict[str, int], places: list[str], varying: list[str]) -> tuple[str | None, ...]:
    """The function of every token of a prompt, or None."""
    if not varying:
        return tuple(names_by_function(roles, places))
    by_token = {roles[name]: name for name in varying}
    return tuple(by_token.get(token) for token in range(len(places)))
