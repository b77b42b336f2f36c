"""Balance: in the counterbalanced design nothing but the swap itself tells in which slot the answer stands. What a
design fixes is not chance: strata, and the spread that is left within them.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from rebinding.task.designs import Design, design
from rebinding.task.prompts import Prompt, numbered, spread, stratum


def naming(prompt: Prompt) -> str:
    """Whether the asked box is named first, second, or not at all."""
    boxes = [] if prompt.operation is None else [prompt.operation.first, prompt.operation.second]  # type: ignore[union-attr]  # swaps
    return ("first", "second")[boxes.index(prompt.question)] if prompt.question in boxes else "bystander"


NUISANCES = {
    "slot of the asked box": lambda prompt: prompt.query_slot,
    "whether the asked box is named first, second or not": naming,
    "the asked label": lambda prompt: prompt.question,
    "the object of the asked box": lambda prompt: prompt.story.objects[prompt.query_slot],
}
ONLY_STRUCTURE = list(NUISANCES)[:2]


def tables(stories: Design, ids: range, nuisance: str) -> dict[object, Counter[int]]:
    """For each value of a nuisance variable, how often the answer stands in each slot."""
    counts: dict[object, Counter[int]] = {}
    for prompt in map(stories.prompt, ids):
        counts.setdefault(NUISANCES[nuisance](prompt), Counter())[prompt.answer_slot] += 1
    return counts


@pytest.mark.parametrize("nuisance", ONLY_STRUCTURE)
@pytest.mark.parametrize(("boxes", "operations"), [(3, 1), (4, 2), (7, 1)])
@pytest.mark.parametrize("start", [0, 5])
def test_no_nuisance_variable_predicts_the_answers_slot(boxes: int, operations: int, start: int, nuisance: str) -> None:
    """Exactly: over a block, whatever the nuisance variable is, the answer stands in every slot equally often."""
    stories = design("counterbalanced", boxes=boxes, operations=operations)
    for counts in tables(stories, range(start, start + stories.block), nuisance).values():
        assert set(counts) == set(range(boxes))
        assert len(set(counts.values())) == 1


@pytest.mark.parametrize("nuisance", list(NUISANCES)[2:])
def test_no_word_predicts_the_answers_slot(nuisance: str) -> None:
    """Words are drawn, so their counts spread: chi-squared over many blocks stays below its 1 in 10,000 bound."""
    from scipy.stats import chi2_contingency

    stories = design("counterbalanced")
    counts = tables(stories, range(36 * 100), nuisance)
    table = [[row[slot] for slot in range(3)] for row in counts.values()]
    assert chi2_contingency(table).pvalue > 1e-4


def test_the_published_design_is_the_counterexample() -> None:
    counts = tables(design(), range(36), ONLY_STRUCTURE[0])
    assert counts == {0: Counter({1: 36})}


def test_a_block_of_three_boxes_is_the_full_crossing() -> None:
    """Slot of the asked box, slots of the two named boxes in order: 18 stories, each twice in 36 ids."""
    stories = design("counterbalanced")
    assert stories.block == 36
    cells = Counter(
        (prompt.query_slot, *(prompt.story.slot(label) for label in (prompt.operation.first, prompt.operation.second)))  # type: ignore[union-attr]  # swaps
        for prompt in map(stories.prompt, range(36))
    )
    assert len(cells) == 18
    assert set(cells.values()) == {2}
    kinds = Counter(naming(prompt) for prompt in map(stories.prompt, range(36)))
    assert kinds == {"first": 12, "second": 12, "bystander": 12}


def test_short_runs_are_spread_over_the_slots() -> None:
    stories = design("counterbalanced")
    for start in range(0, 90, 9):
        pairs = {(prompt.query_slot, prompt.answer_slot) for prompt in map(stories.prompt, range(start, start + 9))}
        assert len(pairs) == 9


def test_slots_are_asked_equally_often_without_operations() -> None:
    stories = design("counterbalanced", operations=0, boxes=4)
    slots = Counter(prompt.query_slot for prompt in map(stories.prompt, range(3, 3 + stories.block)))
    assert slots == dict.fromkeys(range(4), 1)
    assert all(prompt.answer_slot == prompt.query_slot for prompt in map(stories.prompt, range(8)))


def test_published_designs_have_blocks_of_one() -> None:
    assert design().block == design("partner_second").block == 1


# Strata

DICE = np.random.default_rng(0)


def test_a_balanced_block_meets_every_stratum_equally_often() -> None:
    prompts = [design("counterbalanced").prompt(number) for number in range(36)]
    counts = np.bincount(numbered([stratum(prompt) for prompt in prompts]))
    assert counts.tolist() == [2] * 12 + [4] * 3  # a bystander has no place in the order of naming
    fixed = [design("published").prompt(number) for number in range(9)]
    assert {stratum(prompt) for prompt in fixed} == {(1, 1, 0)}  # the partner is named first


def test_coarser_where_there_are_few() -> None:
    """At most half of the degrees of freedom: the asked box's slot goes first, the order of naming last."""
    fine = [
        (place, answer, query) for place in range(2) for answer in range(3) for query in range(3) if answer != query
    ]
    assert len(set(numbered(fine * 2))) == 12
    assert len(set(numbered(fine))) == 6
    assert numbered(fine[::3]) == [0, 0, 1, 1]
    assert numbered(fine[:1]) == [0]
    assert numbered([]) == []


def test_single_stratum_gives_the_usual_standard_error() -> None:
    values = DICE.normal(size=(20, 3))
    actual = spread(values, [0] * 20)
    assert actual.error == pytest.approx(stats.sem(values), rel=1e-12)  # sums of 20 numbers in float64
    assert actual.freedom == 19


def test_regression_on_strata_has_the_same_error() -> None:
    """Of equally large strata: the intercept of least squares on centred indicators, written apart."""
    strata = np.repeat(range(4), 6)
    values = DICE.normal(size=24) + 5.0 * strata
    columns = np.stack([(strata == number) - 0.25 for number in range(3)], axis=1)
    basis = np.column_stack([np.ones(24), columns])
    fit, squares, *_ = np.linalg.lstsq(basis, values)
    error = np.sqrt(squares[0] / 20 * np.linalg.inv(basis.T @ basis)[0, 0])
    actual = spread(values, strata.tolist())
    assert (float(actual.mean), float(actual.error), actual.freedom) == pytest.approx((fit[0], error, 20), rel=1e-10)
    assert actual.error < stats.sem(values) / 3
