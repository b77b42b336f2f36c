"""Which conclusions about a circuit depend on how they were reached: the ablation, the metric, and the prompts.

Two conclusions are drawn in every combination: that the circuit recovers the task, and that it does so better than
random circuits. A conclusion that holds in one combination and fails in another flips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import get_args

import numpy as np
import pandas as pd
import torch

from rebinding.api.evaluation import (
    FULL,
    RESAMPLES,
    Ablation,
    AblationValue,
    at_all_tokens,
    checked_circuit,
    lost_without_all,
    shares_kept,
    with_token_roles,
)
from rebinding.api.model import Model
from rebinding.api.prompts import Prompts
from rebinding.experiments.metrics import Metric, accuracy, logit_difference, probability
from rebinding.experiments.random_draws import RESAMPLED, Match, draw_circuits
from rebinding.experiments.search.graph import Graph
from rebinding.experiments.tokens import metric_column
from rebinding.paper.circuit import Circuit
from rebinding.surgery.sites import Head, SurgeryError, check_word
from rebinding.task.prompts import PromptError
from rebinding.verdicts import exceeds_random
from rebinding.verdicts.estimates import Array

SHARE = 0.8
"""A circuit that keeps at least this share of what the ablation of all heads loses recovers the task."""
FEWEST_PROMPTS, FEWEST_DRAWS = 8, 6
"""Of fewer prompts no interval is narrow, and fewer random circuits decide nothing."""
CONCLUSIONS = ("recovers", "beats_random")
WORDS = {"REPLICATED": "yes", "NOT REPLICATED": "no"}


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """The conclusions on a circuit under every combination, the first of which is the reference.

    `table` has a line for each combination of `prompts`, `ablation` and `metric`: the mean metric of the `model`, of
    the `circuit` alone and `without` all heads; `faithfulness`, the share that the circuit keeps of what is lost
    without all heads, with its 95 % interval over prompts (`low`, `high`); the mean share of random circuits.
    `recovers` is `yes` where the interval lies above `share`, `no` where it lies below, else `open`; `stable` is how
    often a resample of the prompts is on the same side of it. `beats_random` is `yes` where the circuit surely keeps
    more than random circuits do. Both are `undefined` where the ablation of all heads loses nothing for sure. `flips`
    names the conclusions that are `yes` here and `no` in the reference, or the reverse.
    """

    table: pd.DataFrame
    share: float

    @property
    def flips(self) -> pd.DataFrame:
        """The lines in which a conclusion flips."""
        return self.table[self.table["flips"] != ""]


def sensitivity(
    model: Model,
    circuit: Circuit | Graph | Sequence[Head],
    prompts: Mapping[str, Prompts],
    *,
    means: Mapping[str, Prompts] | None = None,
    ablations: Sequence[AblationValue] = get_args(AblationValue),
    metrics: Sequence[Metric] = (logit_difference, probability, accuracy),
    share: float = SHARE,
    draws: int = 10,
    match: Match = "role_and_layer",
) -> Sensitivity:
    """Evaluate a circuit under every combination of prompts, ablation and metric.

    `prompts` are sets of prompts by name, the reference first: with other names, other words, or another template
    (`model.fill`). They may differ in length, but each needs the roles of the circuit, and in the same order. `means`
    are by the same names, for sets whose means shall be over other prompts. `circuit`, `ablations`, `metrics` and
    `match` are as in `evaluate`, `share` is as in `Sensitivity`, and `draws` the number of random circuits.
    """
    _check(prompts, means or {}, ablations, metrics, share, draws)
    circuit, is_everywhere = checked_circuit(circuit, model)
    if not is_everywhere:
        _check_roles(circuit, prompts)
    heads, n_layers = model.anatomy.heads, model.anatomy.n_layers
    random = draw_circuits(circuit, heads, draws=draws, match=match, exclude=True, n_layers=n_layers)
    sets = {"circuit": circuit, "without": Circuit(())} | {f"random {number}": own for number, own in enumerate(random)}
    lines = []
    for name, ablation in product(prompts, ablations):
        own = prompts[name]
        tokenized = [with_token_roles(prompt) for prompt in own.tokenized] if is_everywhere else own.tokenized
        of_length = {key: at_all_tokens(part, own.length) for key, part in sets.items()} if is_everywhere else sets
        other = None if ablation == "zero" else (means or {}).get(name)
        ablated = Ablation.of(model, own, tokenized, other, ablation, metrics, mlps=bool(circuit.mlps))
        of_circuits = pd.concat([ablated.full(), ablated.alone(of_length)]).groupby("circuit", sort=False)
        for number, metric in enumerate(metrics):
            values = {str(key): of[metric_column(number)].to_numpy(dtype=float) for key, of in of_circuits}
            about = {"prompts": name, "ablation": ablation, "metric": getattr(metric, "__name__", repr(metric))}
            lines.append(about | _conclusions(values, share))
    for line in lines:
        opposite = [name for name in CONCLUSIONS if {line[name], lines[0][name]} == {"yes", "no"}]
        line["flips"] = ", ".join(opposite)
    return Sensitivity(pd.DataFrame(lines), share)


def _conclusions(values: Mapping[str, Array], share: float) -> dict[str, object]:
    """The line of one combination, from the metric of each circuit by prompt."""
    full, circuit, without = (values[name] for name in (FULL, "circuit", "without"))
    random = np.stack([own for name, own in values.items() if name.startswith("random")])  # (draw, prompt)
    line: dict[str, object] = {"model": full.mean(), "circuit": circuit.mean(), "without": without.mean()}
    try:
        lost = lost_without_all(full, without)
    except SurgeryError:
        nothing = dict.fromkeys(("faithfulness", "low", "high", "random", "stable"), float("nan"))
        return line | nothing | dict.fromkeys(CONCLUSIONS, "undefined")
    samples = np.random.default_rng(RESAMPLED).integers(len(lost), size=(RESAMPLES, len(lost)))  # (draw, prompt)
    resampled, value = shares_kept(circuit - without, lost, samples), float((circuit - without).mean() / lost.mean())
    low, high = np.nanquantile(resampled, [0.025, 0.975])
    sign = np.sign(lost.mean())  # a divergence falls as the circuit gets better
    beats = exceeds_random(sign * circuit, sign * random, margin=0.0)
    return line | {
        "faithfulness": value,
        "low": float(low),
        "high": float(high),
        "random": float((random - without).mean() / lost.mean()),
        "recovers": "yes" if low >= share else "no" if high < share else "open",
        "stable": float(((resampled >= share) == (value >= share)).mean()),
        "beats_random": WORDS.get(beats.outcome, "open"),
    }


def _check(
    prompts: Mapping[str, Prompts],
    means: Mapping[str, Prompts],
    ablations: Sequence[AblationValue],
    metrics: Sequence[Metric],
    share: float,
    draws: int,
) -> None:
    if not isinstance(prompts, Mapping) or not prompts:
        raise PromptError("prompts are sets by name, the reference first, such as {'as written': prompts}")
    for name, own in prompts.items():
        if not isinstance(own, Prompts) or len(own) < FEWEST_PROMPTS:
            size = len(own) if isinstance(own, Prompts) else repr(own)[:60]
            raise PromptError(f"{name!r}: an interval needs {FEWEST_PROMPTS} prompts or more; got {size}")
    if unknown := sorted(set(means) - set(prompts)):
        raise PromptError(f"means are by the names of prompts; there are no prompts {unknown[0]!r}")
    for ablation in ablations:
        check_word("ablation", ablation, get_args(AblationValue))
    if not ablations or not metrics or not 0 < share <= 1 or draws < FEWEST_DRAWS:
        raise SurgeryError(
            f"give an ablation, a metric, a share above 0 and at most 1, and {FEWEST_DRAWS} draws or more; got"
            f" {len(ablations)} ablations, {len(metrics)} metrics, share={share}, draws={draws}"
        )


def _check_roles(circuit: Circuit, prompts: Mapping[str, Prompts]) -> None:
    """Refuse prompts that lack a role of the circuit, or have its roles in an order that the reference never has."""
    roles = list(dict.fromkeys(head.role for head in circuit.heads))
    (reference, *_), orders = prompts, dict[str, set[tuple[str, ...]]]()
    for name, own in prompts.items():
        try:
            at = torch.stack([own.at(role) for role in roles])  # (role, prompt)
        except PromptError as error:
            raise PromptError(f"{name!r}: {error}") from None
        orders[name] = {tuple(roles[place] for place in line) for line in at.argsort(dim=0, stable=True).T.tolist()}
        if moved := orders[name] - orders[reference]:
            raise PromptError(
                f"{name!r} moves roles: {', '.join(min(moved))} come in this order there, and in no prompt of"
                f" {reference!r}. A circuit is heads at roles; write a template that keeps their order"
            )
