"""Data on which a rule that looks sound decides wrongly: the rate before a mend and after it.

    python -m tests.oracles.attacks

Each attack runs one experiment and says whether the former rule and the present one decide wrongly.

The truth is on the boundary, or the sentence is true, so a rule may err in 5 % of experiments. Former rules are written
out here; the present ones are those of the package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd
from statsmodels.stats.proportion import proportion_confint

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.measure import in_orders, walk
from rebinding.experiments.paths.summary import MIN_EFFECT, Selection, reselected, scores, select, selected_on_halves
from rebinding.paper.circuit import Circuit, CircuitHead, Head
from rebinding.verdicts import absence, effect, effect_somewhere, emptiness, overlap
from rebinding.verdicts.effects import effect_outcomes
from rebinding.verdicts.estimates import estimate

Array: TypeAlias = npt.NDArray[np.float64]
RUNS = 300
LAYERS, WIDTH, PROMPTS = 42, 16, 100
"""A stage of path patching on a model of the size of Gemma-2-9B."""


class Wrong(NamedTuple):
    """Whether the former rule and the present one decide wrongly."""

    before: bool
    after: bool


Attack: TypeAlias = Callable[[np.random.Generator], Wrong]


def stage(values: Array, top_k: int) -> Evidence:
    """Evidence of a stage in which heads change the answer's lead by `values` (prompt, head)."""
    n, heads = values.shape
    layer, head = np.divmod(np.arange(heads), WIDTH)
    rows = {
        "prompt": np.repeat(np.arange(n), heads),
        "stratum": "0",
        "layer": np.tile(layer, n),
        "head": np.tile(head, n),
        "lead_orig": 0.0,
        "lead_patch": values.ravel(),
    }
    return Evidence("paths", pd.DataFrame(rows), {"stage": {"top_k": top_k}})


def selected(evidence: Evidence, rule: Selection) -> list[Head]:
    """The heads that a stage keeps."""
    top_k = evidence.settings["stage"]["top_k"]
    return select(scores(evidence, "logit"), top_k, rule=rule, min_effect=MIN_EFFECT["logit"])


def repeated_selection(dice: np.random.Generator, *, senders: int, z: float, top_k: int) -> Wrong:
    """The paper's selection is an exact repetition of ours on other prompts. Wrong: NOT REPLICATED.

    `senders` heads have effects of `z` standard errors each, all others none. The former rule compared the overlap with
    those of our selection and selections on resamples of the same prompts.
    """
    shift = np.zeros(LAYERS * WIDTH)
    shift[dice.permutation(LAYERS * WIDTH)[:senders]] = -z / np.sqrt(PROMPTS)
    ours, paper = (stage(dice.standard_normal((PROMPTS, len(shift))) + shift, top_k) for _ in range(2))
    own, published = selected(ours, "published"), selected(paper, "published")
    options: Any = {"universe": len(shift), "null": "layers", "layers": LAYERS}
    resampled = [(own, heads) for heads in reselected(ours, "logit", "published")]
    halves = selected_on_halves(ours, "logit", "published")
    outcomes = (overlap(own, published, repetitions=pairs, **options).outcome for pairs in (resampled, halves))
    return Wrong(*(outcome == "NOT REPLICATED" for outcome in outcomes))


def absent_group(dice: np.random.Generator, *, z: float, spread: float = 0.3) -> Wrong:
    """One head sends, and is selected on half of all sets of prompts (z = 4). Wrong: "the group is empty".

    The former rule took a majority of selections on resampled prompts.
    """
    values = 0.02 * dice.standard_normal((PROMPTS, LAYERS * WIDTH))
    values[:, 0] = spread * dice.standard_normal(PROMPTS) - MIN_EFFECT["logit"] - z * spread / np.sqrt(PROMPTS)
    evidence = stage(values, 10)
    if selected(evidence, "sure"):
        return Wrong(False, False)
    resampled = reselected(evidence, "logit", "sure")
    majority = emptiness([], empty=False, selections=resampled)
    return Wrong(*(verdict.outcome == "NOT REPLICATED" for verdict in (majority, absence(resampled))))


def kept_share(dice: np.random.Generator, *, walks: int = 8, heads: int = 100, prompts: int = 50) -> Wrong:
    """Walks keep a half of the heads in the mean. Wrong: surely more than half, or surely fewer.

    The former walks had other orders and the same prompts, so all of them made the same mistakes.
    """
    circuit = Circuit(tuple(CircuitHead("A", *divmod(number, WIDTH), "readout") for number in range(heads)))
    place = {head: number for number, head in enumerate(circuit.heads)}
    drops = 0.01 + 0.1 * dice.standard_normal((walks, prompts, heads))  # (set of prompts, prompt, head)
    needs = (drops + 0.03 * dice.standard_normal((walks, prompts, 1))).mean(axis=1)  # (set of prompts, head)

    def is_decided(sets: list[int]) -> bool:
        def score(circuits: Any) -> list[float]:
            rows = zip(sets, circuits, strict=True)
            return [float(needs[row, [place[head] for head in variant.heads]].sum()) for row, variant in rows]

        shares = [walked.circuit.pairs / heads for walked in walk(in_orders(circuit, walks), score)]
        return effect(shares, margin=0.0, above=0.5, unit="circuit draws").outcome != "INCONCLUSIVE"

    return Wrong(is_decided([0] * walks), is_decided(list(range(walks))))


def best_of_places(dice: np.random.Generator, *, places: int = 100, prompts: int = 16) -> Wrong:
    """No place has an effect: a value in ten is far below all others. Wrong: "there is an effect somewhere".

    The former rule did not ask for the range of the values.
    """
    values = 0.2 + 0.1 * dice.standard_normal((places, prompts))
    values[dice.random(values.shape) < 0.1] -= 2.0  # the mean is 0
    former = effect_outcomes(estimate(values, unit="prompts"), 0.0, tests=places)
    present = effect_somewhere(values, margin=0.0, support=(-3.0, 3.0)).outcome
    return Wrong(bool((former == "REPLICATED").any()), present == "REPLICATED")


ATTACKS: Mapping[str, Attack] = {
    f"an exact repetition: {senders} senders of {z:g} standard errors, {top_k} kept": partial(
        repeated_selection, senders=senders, z=z, top_k=top_k
    )
    for senders, z, top_k in ((50, 1.5, 10), (50, 1.5, 20), (20, 4.0, 10), (10, 3.0, 10))
} | {
    "a group of one head, selected on half of all sets of prompts": partial(absent_group, z=4.0),
    "the share of heads that pruning keeps, at the boundary": kept_share,
    "an effect at one of 100 places, 16 prompts": best_of_places,
}


def main() -> None:
    """Print how often each rule decides wrongly, as a table in Markdown."""
    print(f"| wrong, in per cent of {RUNS} experiments | before | after |\n|---|---|---|")
    for name, attack in ATTACKS.items():
        before, after = zip(*repeat(attack, RUNS), strict=True)
        print(f"| {name} | {shown(before)} | {shown(after)} |", flush=True)


def repeat(attack: Attack, runs: int) -> list[Wrong]:
    """Run an attack with seeds from 0 on."""
    return [attack(np.random.default_rng(seed)) for seed in range(runs)]


def shown(wrong: tuple[bool, ...]) -> str:
    """The share with its 95 % interval, in per cent."""
    low, high = proportion_confint(sum(wrong), len(wrong), method="beta")
    return f"{100 * np.mean(wrong):.1f} ({100 * low:.1f} to {100 * high:.1f})"


if __name__ == "__main__":
    main()
