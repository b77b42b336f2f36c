"""Three tests of a circuit after Shi et al. (2024), with the rules of this project.

**Equivalence**: the circuit does as well as the model. On a random prompt the circuit scores higher as often as the
model does, within `EPSILON` (their epsilon).

**Independence**: what the circuit leaves out knows nothing of the task: the score of its complement does not depend on
that of the model. Theirs is a permutation test of the Hilbert-Schmidt independence criterion, which can refute
independence and never show it. So REPLICATED needs a bound as well: the correlation lies surely within `CORRELATION`.

**Minimality**: every head counts. The score of the circuit changes more without it than without a random head that was
added to the circuit, of its layer and at its position.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd

from rebinding.api.evaluation import (
    FULL,
    Ablation,
    AblationValue,
    at_all_tokens,
    checked_circuit,
    with_token_roles,
)
from rebinding.api.model import Model
from rebinding.api.prompts import Prompts
from rebinding.experiments.metrics import Metric, logit_difference
from rebinding.experiments.random_draws import RESAMPLED
from rebinding.experiments.search.graph import Graph
from rebinding.experiments.tokens import METRIC
from rebinding.paper.circuit import MLP, Circuit, CircuitHead, head_name
from rebinding.surgery.sites import Head, SurgeryError
from rebinding.verdicts import Verdict, exceeds_random, no_effect
from rebinding.verdicts.estimates import Array
from rebinding.verdicts.outcome import Outcome, invalid
from rebinding.verdicts.sentences import all_of

EPSILON = 0.1
"""Shi et al.'s: how far from one half the share of prompts may be on which the circuit scores higher."""
CORRELATION = 0.3
"""A complement whose score explains less than a tenth of the variance of the model's counts as independent."""
PERMUTATIONS = 1000
LEVEL = 0.05
FEWEST = 8
"""Prompts: of fewer, no share and no correlation is surely within these bounds or outside them."""


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """The verdicts of the three tests, and the metric by circuit and prompt."""

    equivalence: Verdict
    independence: Verdict
    minimality: Verdict
    rows: pd.DataFrame = field(repr=False)


def check_circuit(
    model: Model,
    circuit: Circuit | Graph | Sequence[Head],
    prompts: Prompts,
    *,
    means: Prompts | None = None,
    ablation: AblationValue = "mean",
    metric: Metric = logit_difference,
    draws: int = 10,
) -> Hypotheses:
    """Test a circuit for equivalence, independence and minimality, as Shi et al. define them.

    `circuit`, `means`, `ablation` and `metric` are as in `evaluate`; `draws` random heads are added to the circuit for
    each head that minimality compares with them.
    """
    if len(prompts) < FEWEST or draws < 2:
        raise SurgeryError(
            f"{len(prompts)} prompts and {draws} draws: the tests need {FEWEST} prompts and 2 draws at least"
        )
    circuit, is_everywhere = checked_circuit(circuit, model)
    added = {head: _heads_beside(circuit, head, model, draws) for head in _distinct(circuit)}
    sets = {"circuit": circuit}
    sets |= {f"less {_name(head)}": circuit.without([head]) for head in added}
    sets |= {f"more {_name(head)}": Circuit((*circuit.heads, head)) for heads in added.values() for head in heads}
    at = {head.role: prompts.at(head.role).tolist() for head in circuit.heads if not is_everywhere}
    complement, others = _complement(circuit, model, at, prompts.length)
    if is_everywhere:
        sets = {name: at_all_tokens(own, prompts.length) for name, own in sets.items()}
    tokenized = [
        with_token_roles(prompt, {name: tokens[number] for name, tokens in others.items()})
        for number, prompt in enumerate(prompts.tokenized)
    ]
    ablated = Ablation.of(model, prompts, tokenized, means, ablation, [metric], mlps=bool(circuit.mlps))
    rows = pd.concat([ablated.full(), ablated.alone({**sets, "complement": complement})], ignore_index=True)
    scores = {str(name): of["metric"].to_numpy(dtype=float) for name, of in rows.groupby("circuit", sort=False)}
    return Hypotheses(
        _equivalence(scores["circuit"], scores[FULL]),
        _independence(scores["complement"], scores[FULL]),
        _minimality(scores, {_name(head): [_name(other) for other in others] for head, others in added.items()}),
        rows[["circuit", "prompt", METRIC]],
    )


def _distinct(circuit: Circuit) -> list[CircuitHead]:
    """The head-position pairs of a circuit, each once, whatever its groups."""
    return list({(head.layer, head.head, head.role): head for head in circuit.heads}.values())


def _name(head: CircuitHead) -> str:
    return f"{head_name(head.layer, head.head)} at {head.role}"


def _heads_beside(circuit: Circuit, head: CircuitHead, model: Model, draws: int) -> list[CircuitHead]:
    """Random heads of a head's layer that the circuit has nowhere, at its role; for an MLP, MLPs of any layers."""
    own = {(other.layer, other.head) for other in circuit.heads}
    is_mlp = head.head == MLP
    like = model.mlps if is_mlp else [other for other in model.heads if other[0] == head.layer]
    free = [other for other in like if other not in own]
    if len(free) < 2:
        raise SurgeryError(
            f"minimality compares {head_name(head.layer, head.head)} with random"
            f" {'MLPs' if is_mlp else 'heads of its layer'}, and {len(free)} of them are outside the circuit; 2 are"
            " needed"
        )
    generator = np.random.default_rng([RESAMPLED, head.layer, len(model.heads) if is_mlp else head.head])
    places = sorted(generator.choice(len(free), min(draws, len(free)), replace=False).tolist())
    return [CircuitHead("random", layer, number, head.role) for layer, number in (free[place] for place in places)]


def _complement(
    circuit: Circuit, model: Model, at: Mapping[str, Sequence[int]], length: int
) -> tuple[Circuit, dict[str, list[int]]]:
    """Every head (and MLP, if the circuit has some) at every token that the circuit does not have. A head that it has
    at some roles, which are `at` these tokens of each prompt, is there at all others, by names of which the tokens in
    each prompt are returned too."""
    roles: dict[Head, list[str]] = {}
    for own in circuit.heads:
        roles.setdefault((own.layer, own.head), []).append(own.role)
    every = [*model.heads, *(model.mlps if circuit.mlps else ())]
    outside = Circuit(tuple(CircuitHead("", layer, head, "") for layer, head in every if (layer, head) not in roles))
    heads, tokens = list(at_all_tokens(outside, length).heads), dict[str, list[int]]()
    for (layer, head), own_roles in roles.items() if at else ():
        taken = [set(of_prompt) for of_prompt in zip(*(at[role] for role in own_roles), strict=True)]
        free = [sorted(set(range(length)) - own_tokens) for own_tokens in taken]
        for number in range(max(map(len, free))):
            name = f"token {number} beside {', '.join(sorted(set(own_roles)))}"
            heads.append(CircuitHead("", layer, head, name))
            tokens[name] = [of_prompt[min(number, len(of_prompt) - 1)] for of_prompt in free]  # the last one repeated
    return Circuit(tuple(heads)), tokens


def _equivalence(circuit: Array, model: Array) -> Verdict:
    """Whether the circuit scores higher than the model on half of the prompts; equal scores count half."""
    higher = (circuit > model) + (circuit == model) / 2  # (prompt,)
    return no_effect(higher, margin=EPSILON, about=0.5, support=(0.0, 1.0))


def _independence(complement: Array, model: Array) -> Verdict:
    """Whether two scores are independent: refuted by the permutation test, shown by a bound on their correlation."""
    n = len(model)
    if np.ptp(model) == 0:
        return invalid("no-effect", "scores_vary", "the model's score is the same on every prompt", n=n)
    p_value = hsic_p_value(complement, model)
    constant = np.ptp(complement) == 0
    correlation = 0.0 if constant else float(np.corrcoef(complement, model)[0, 1])
    low, high = (0.0, 0.0) if constant else _fisher(correlation, n)
    outcome: Outcome = "INCONCLUSIVE"
    if p_value < LEVEL:
        outcome = "NOT REPLICATED"
    elif low > -CORRELATION and high < CORRELATION:
        outcome = "REPLICATED"
    needed = None
    gap = math.atanh(CORRELATION) - abs(math.atanh(min(abs(correlation), 1 - 1e-9)))
    if outcome == "INCONCLUSIVE" and gap > 0:
        needed = math.ceil(3 + ((1.645 + 0.842) / gap) ** 2)  # two one-sided tests at 5 %, with 80 % power
    meaning = {
        "REPLICATED": "the score of the complement surely depends on the model's no more than that",
        "NOT REPLICATED": "the score of the complement depends on the model's",
        "INCONCLUSIVE": "no dependence is shown, and none is excluded",
    }[outcome]
    reason = f"correlation {correlation:.2g} in [{low:.2g}, {high:.2g}] against +-{CORRELATION:g}, p = {p_value:.2g} of"
    return Verdict(
        "no-effect", outcome, f"{reason} the permutation test: {meaning}", measured=correlation, low=low, high=high,
        margin=CORRELATION, n=n, needed_n=needed, p_value=p_value, against=0.0, confidence=1 - 2 * LEVEL,
    )  # fmt: skip


def _fisher(correlation: float, n: int) -> tuple[float, float]:
    """The 90 % interval of a correlation, by Fisher's transformation."""
    center, half = math.atanh(float(np.clip(correlation, -1 + 1e-9, 1 - 1e-9))), 1.645 / math.sqrt(n - 3)
    return math.tanh(center - half), math.tanh(center + half)


def hsic(centred: Array, kernel: Array) -> float:
    """The Hilbert-Schmidt independence criterion of two samples from their kernel matrices, one of them centred: the
    trace of the product of both, centred, over (n - 1)^2."""
    return float((centred * kernel).sum()) / (len(kernel) - 1) ** 2


def hsic_p_value(first: Array, second: Array) -> float:
    """The share of permutations of one sample, the given order among them, with as large a criterion."""
    one, other = _centred(_kernel(first)), _kernel(second)
    observed, generator = hsic(one, other), np.random.default_rng(RESAMPLED)
    orders = (generator.permutation(len(first)) for _ in range(PERMUTATIONS))
    slack = 1e-9 * abs(observed)  # sums in another order
    larger = sum(hsic(one, other[np.ix_(order, order)]) >= observed - slack for order in orders)
    return (1 + larger) / (1 + PERMUTATIONS)


def _kernel(sample: Array) -> Array:
    """A Gaussian kernel matrix (n, n), as wide as the median distance."""
    distance = np.abs(sample[:, None] - sample[None])
    apart = distance[np.triu_indices(len(sample), 1)]
    width = float(np.median(apart)) or float(apart.mean()) or 1.0
    kernel: Array = np.exp(-(distance**2) / (2 * width**2))
    return kernel


def _centred(kernel: Array) -> Array:
    centred: Array = kernel - kernel.mean(0) - kernel.mean(1, keepdims=True) + kernel.mean()
    return centred


def _minimality(scores: Mapping[str, Array], added: Mapping[str, Sequence[str]]) -> Verdict:
    """Whether the score changes more without each head of the circuit than without a random one that was added."""
    circuit = scores["circuit"]
    parts = {
        head: partial(
            exceeds_random,
            np.abs(circuit - scores[f"less {head}"]),
            np.stack([np.abs(scores[f"more {other}"] - circuit) for other in others]),
            margin=0.0,
        )
        for head, others in added.items()
    }
    return all_of("ordering", parts)
