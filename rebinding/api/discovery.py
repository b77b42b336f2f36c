"""Find a circuit, at the roles of a story or at all positions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, overload

import torch

from rebinding.api.model import Model
from rebinding.api.patching import candidates_of, clean_score, noise_pairs
from rebinding.api.prompts import Pairs, Prompts
from rebinding.experiments.metrics import Metric, Score
from rebinding.experiments.paths.measure import discover as discover_by_stages
from rebinding.experiments.paths.request import PAPER
from rebinding.experiments.search.graph import Graph
from rebinding.experiments.search.pairs import SearchPairs, first_changes
from rebinding.experiments.search.request import Screen, SearchSettings
from rebinding.experiments.search.search import MeasuredSteps, Search
from rebinding.paper.circuit import Circuit
from rebinding.surgery.calling import hold
from rebinding.surgery.sites import SurgeryError, check_word
from rebinding.task.prompts import PromptError
from rebinding.task.text import ANSWER_ROLE, FUNCTIONS, names_by_function, names_by_place

FEWEST = 4
"""Pairs of a search; with fewer no effect is significant."""


@overload
def discover(model: Model, pairs: Pairs, *, positions: Literal["roles"] = "roles") -> Circuit: ...
@overload
def discover(
    model: Model,
    pairs: Pairs,
    *,
    positions: Literal["all"],
    metric: Metric | None = None,
    share: float | None = None,
    alpha: float | None = None,
    min_attention: float | None = None,
    screen: Screen | None = None,
    mlps: bool | None = None,
    block: int | None = None,
    minutes: float | None = None,
    report: Callable[[str], object] | None = None,
) -> Graph: ...
def discover(
    model: Model,
    pairs: Pairs,
    *,
    positions: Literal["roles", "all"] = "roles",
    metric: Metric | None = None,
    share: float | None = None,
    alpha: float | None = None,
    min_attention: float | None = None,
    screen: Screen | None = None,
    mlps: bool | None = None,
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

    `screen="edge-attribution"` estimates the effect of the whole edge, `"integrated-edge-attribution"` the mean of such
    estimates on the way from noise to clean prompts; what they keep is measured exactly. With `mlps=True` MLPs are
    nodes beside heads, and an edge leads through no other MLP.

    `metric`, a function such as `rebinding.probability`, takes the place of the score. The first-order estimate needs
    its gradient: with a metric without one, or flat on the clean prompts as `kl_divergence` is, give `screen="none"`.
    """
    check_word("positions", positions, ("roles", "all"))
    if len(pairs) < FEWEST:
        raise PromptError(
            f"{len(pairs)} pairs: no effect is significant on so few; give {FEWEST} or more (36 are usual)"
        )
    given = {"share": share, "alpha": alpha, "min_attention": min_attention, "screen": screen}
    given |= {"mlps": mlps, "block": block}
    settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if positions == "all":
        with hold(model.loaded.model):
            score = clean_score(model, pairs.clean, metric)
            return _search(model, pairs, score, SearchSettings(**settings), minutes, report or (lambda line: None))
    if settings or any(item is not None for item in (metric, minutes, report)):
        raise SurgeryError(
            "metric, share, alpha, min_attention, screen, mlps, block, minutes and report belong to the search at all"
            " positions; add positions='all', or leave them out"
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
    model: Model,
    pairs: Pairs,
    score: Score | None,
    settings: SearchSettings,
    minutes: float | None,
    report: Callable[[str], object],
) -> Graph:
    searched = search_pairs(pairs, score)
    deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    steps = MeasuredSteps(model.surgeon, searched, settings.block, settings.mlps)
    search = Search(searched, settings, steps, deadline, report)
    if score is not None and settings.screen != "none":
        _check_slope(score, search.total_loss)
    own = {} if score is None else {"metric": getattr(score.metric, "__name__", repr(score.metric))}
    return search.graph({"model": model.name, **own})


FLAT = 1e-3
"""Share of the total loss by which a metric must change where all logits change by one, or it is flat."""


def _check_slope(score: Score, total_loss: float) -> None:
    """Refuse a first-order screen for a metric without a slope on the clean prompts: it would skip every sender."""
    if score.slope() < FLAT * abs(total_loss):
        raise SurgeryError(
            "the metric has no gradient on the clean prompts, or next to none (a divergence from the clean run has its"
            " minimum there), so a first-order estimate would screen out every sender; give screen='none'"
        )


def search_pairs(pairs: Pairs, score: Score | None = None) -> SearchPairs:
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
    answers = candidates_of(pairs.clean, score is not None, 2)
    return SearchPairs(
        tuple(range(len(pairs))), clean, noise, answers, match,
        first_changes(clean, noise, match.tolist()), tuple(places),
        tuple(_functions(prompt.roles, places, [name for name in own if name not in fixed]) for prompt in clean),
        pairs.clean.strata, score,
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
