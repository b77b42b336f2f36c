"""Declare claims of your own in any folder, and judge them with pytest.

    from rebinding.testing import Claim, Study, Verdict, effect, row

    @row("mine.head", "Head 5.3 moves the answer.", kind="effect", source="ours", statistic="fall", where="readout")
    def test_head(claim: Claim, study: Study) -> Verdict:
        ...
        return effect(falls, margin=0.1)

`pytest FOLDER --model NAME` judges the rows on a model; `rebinding new-suite FOLDER` writes a first one. A test returns
a verdict, from one of the rules below. Gates (`require`) say when there is nothing to judge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import getmodule
from typing import Any, TypeAlias, TypeVar

import pytest

from rebinding.paper.claim import Claim, Metric, Rule, SectionName, Unit
from rebinding.study.study import Study
from rebinding.verdicts import (
    Gate,
    GateFailed,
    Verdict,
    above_chance,
    edits_change_values,
    effect,
    exceeds_random,
    finite,
    no_effect,
    not_applicable,
    ordering,
    reported,
    require,
)

__all__ = [
    "Claim",
    "Gate",
    "GateFailed",
    "Study",
    "Verdict",
    "above_chance",
    "edits_change_values",
    "effect",
    "exceeds_random",
    "finite",
    "no_effect",
    "not_applicable",
    "ordering",
    "reported",
    "require",
    "row",
    "rows",
]

Test: TypeAlias = Callable[[Claim, Study], Verdict]
TestFunction = TypeVar("TestFunction", bound=Callable[..., Any])
Changes: TypeAlias = Mapping[str, Any]


def row(
    id: str,
    statement: str,
    *,
    source: str,
    kind: Rule,
    statistic: str,
    where: str,
    metrics: tuple[Metric, ...] = (),
    unit: Unit = "prompts",
    n: int = 100,
    models: tuple[str, ...] = (),
    own_task: bool = True,
    controlled: Changes | None = None,
) -> Callable[[TestFunction], TestFunction]:
    """Declare a claim that the test below judges on every model of the run. Several decorators add up, from top to
    bottom.

    `kind` is the rule, `statistic` what it is computed from, `where` the heads and tokens; `n` the number of units
    (`study.n(claim)`, which `--samples` replaces). `metrics` are kinds of quantity whose margins this project declares
    (`claim.margin()`); a rule takes any other margin as a number. On `models`, by name, the verdict must be REPLICATED;
    on others it is reported. `controlled` adds a second row of the same sentence, by a procedure without the flaws of
    the first (`claim.procedure`), with these changes. A claim about box stories has `own_task=False`: it is judged
    behind the gates of the paper's claims, which are about stories.
    """
    claim = Claim(id, statement, source, kind, metrics, statistic, where, unit, n, models=models, own_task=own_task)
    return rows([claim], controlled=None if controlled is None else {"models": models, **controlled})


def rows(claims: Iterable[Claim], *, controlled: Changes | None = None) -> Callable[[TestFunction], TestFunction]:
    """Declare a table of claims, followed by the controlled row of each if there are changes for it."""
    return declare(*with_controlled(claims, controlled))


def with_controlled(claims: Iterable[Claim], controlled: Changes | None) -> Iterator[Claim]:
    """Claims, followed by their controlled rows if there are changes for these."""
    published = tuple(claims)
    yield from published
    if controlled is not None:
        yield from (claim.controlled(**controlled) for claim in published)


def declare(*claims: Claim) -> Callable[[TestFunction], TestFunction]:
    """Put claims in front of those of a test; pytest passes them to it one by one, as `claim`."""

    def decorate(test: TestFunction) -> TestFunction:
        section: SectionName = getattr(getmodule(test), "SECTION", "other")
        new = (replace(claim, section=section) if claim.section == "other" else claim for claim in claims)
        all_claims = (*new, *claims_of(test))
        marks = [mark for mark in getattr(test, "pytestmark", ()) if not is_list_of_claims(mark)]
        vars(test)["pytestmark"] = marks
        ids = [claim.id for claim in all_claims]
        decorated: TestFunction = pytest.mark.parametrize("claim", all_claims, ids=ids)(test)
        return decorated

    return decorate


def claims_of(test: Callable[..., Any]) -> tuple[Claim, ...]:
    """The claims that a function judges."""
    return tuple(claim for mark in getattr(test, "pytestmark", ()) if is_list_of_claims(mark) for claim in mark.args[1])


def is_list_of_claims(mark: pytest.Mark) -> bool:
    """Whether a mark of a test comes from `declare`."""
    return mark.name == "parametrize" and mark.args[0] == "claim"
