"""How a claim is written down above its rule, and the list of all claims of the suite."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from inspect import getmodule
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pytest

from rebinding.paper.claim import EVERY, Claim, Metric, Rule, SectionName, Unit
from rebinding.paper.procedure import ProcedureName
from rebinding.study.study import Study
from rebinding.verdicts import Verdict

ORDER = ("test_tracing", "test_circuit", "test_chain", "test_attention", "test_roles", "test_binding",
         "test_binding_signatures", "test_binding_correct", "test_robustness", "test_beyond",
         "test_beyond_binding")  # fmt: skip
"""Modules in the order of the paper; all others come after these."""
OF_RUNS = "run"
"""The module of claims about all models of a run."""
GEMMA_2, GEMMA_3, LLAMA_3B, LLAMA_8B = "gemma2-9b", "gemma3-12b", "llama3.2-3b", "llama3.1-8b"
"""The models of the paper."""

Test: TypeAlias = Callable[[Claim, Study], Verdict]
Judged = TypeVar("Judged", bound=Callable[..., Any])
Changes: TypeAlias = Mapping[str, Any]


def row(
    id: str,
    statement: str,
    *,
    source: str,
    kind: Rule,
    metrics: tuple[Metric, ...],
    statistic: str,
    where: str,
    unit: Unit = "prompts",
    n: int = 300,
    group: str | None = None,
    needs: tuple[str, ...] | None = None,
    condition: str | None = None,
    printed: str | None = None,
    models: tuple[str, ...] = EVERY,
    procedure: ProcedureName = "published",
    long: bool = False,
    section: SectionName = "other",
    headline: int | None = None,
    controlled: Changes | None = None,
    five_boxes: Changes | None = None,
) -> Callable[[Judged], Judged]:
    """A claim that the test below judges; several of these add up, from top to bottom.

    `controlled` adds the row of the same sentence under the controlled procedure, with these changes; `five_boxes` adds
    the rows of both procedures in stories of five boxes. `procedure="controlled"` is for a sentence that has no
    published row. A claim about a group needs the heads of that group, unless `needs` says otherwise. A claim stands in
    the section that its module names as `SECTION`, unless `section` says otherwise. `headline` is the number of the
    headline claim that rests on it and on its controlled row.
    """
    if needs is None:
        needs = () if group is None else (group,)
    claim = Claim(id, statement, source, kind, metrics, statistic, where, unit, n, group, condition, printed, needs,
                  models, procedure=procedure, long=long, section=section, headline=headline)  # fmt: skip
    if five_boxes is None:
        return rows([claim], controlled=controlled)
    changes = None if controlled is None else {"n": n, **controlled}
    wide = with_controlled([claim.with_five_boxes(**five_boxes)], changes)
    return declare(*with_controlled([claim], controlled), *wide)


def rows(claims: Iterable[Claim], *, controlled: Changes | None = None) -> Callable[[Judged], Judged]:
    """The same for a table of claims: all of them as they are, and after them the controlled row of each."""
    return declare(*with_controlled(claims, controlled))


def with_controlled(claims: Iterable[Claim], controlled: Changes | None) -> Iterator[Claim]:
    """Claims, and after them their controlled rows, if there are changes for these."""
    published = tuple(claims)
    yield from published
    if controlled is not None:
        yield from (claim.controlled(**controlled) for claim in published)


def declare(*claims: Claim) -> Callable[[Judged], Judged]:
    """Put claims in front of those that a test has; pytest gives them to it one by one, as `claim`."""

    def declared(test: Judged) -> Judged:
        section: SectionName = getattr(getmodule(test), "SECTION", "other")
        here = (replace(claim, section=section) if claim.section == "other" else claim for claim in claims)
        every = (*here, *claims_of(test))
        marks = [mark for mark in getattr(test, "pytestmark", ()) if not is_list_of_claims(mark)]
        vars(test)["pytestmark"] = marks
        decorated: Judged = pytest.mark.parametrize("claim", every, ids=[claim.id for claim in every])(test)
        return decorated

    return declared


def claims_of(test: Callable[..., Any]) -> tuple[Claim, ...]:
    """The claims that a function judges."""
    return tuple(claim for mark in getattr(test, "pytestmark", ()) if is_list_of_claims(mark) for claim in mark.args[1])


def is_list_of_claims(mark: pytest.Mark) -> bool:
    """Whether a mark of a test is what `declare` left there."""
    return mark.name == "parametrize" and mark.args[0] == "claim"


@dataclass(frozen=True)
class Row:
    """A claim and the function that judges it."""

    claim: Claim
    test: Callable[..., Verdict]


@cache
def catalogue() -> tuple[Row, ...]:
    """Every claim about one model, in the order of the paper."""
    names = sorted(
        one.name for one in pkgutil.iter_modules([str(Path(__file__).parent)]) if one.name.startswith("test_")
    )
    return tuple(row for name in dict.fromkeys((*ORDER, *names)) for row in rows_in(name))


def claims() -> tuple[Claim, ...]:
    """The same claims without their tests."""
    return tuple(row.claim for row in catalogue())


@cache
def catalogue_of_runs() -> tuple[Row, ...]:
    """Every claim about all models of a run."""
    return tuple(rows_in(OF_RUNS))


def rows_in(name: str) -> Iterator[Row]:
    """The rows of one module, in the order in which they stand there."""
    for test in vars(importlib.import_module(f"claims.{name}")).values():
        yield from (Row(claim, test) for claim in claims_of(test))


@cache
def by_id() -> Mapping[str, Claim]:
    """All claims, also those about a run, by their ids."""
    return {row.claim.id: row.claim for row in (*catalogue(), *catalogue_of_runs())}


def claim(id: str) -> Claim:
    """The claim with this id."""
    if id not in by_id():
        near = get_close_matches(id, by_id(), n=3) or [next(iter(by_id()))]
        raise ValueError(f"No claim has the id {id!r}. Ids are such as {', '.join(near)}")
    return by_id()[id]


@cache
def places() -> Mapping[str, int]:
    """The number of every sentence in the order of the paper; claims about a run come last."""
    return {sentence: number for number, sentence in enumerate(dict.fromkeys(one.sentence for one in by_id().values()))}


def place(claim: Claim) -> int:
    """Where the sentence of a claim stands; one that is not in the catalogue comes last."""
    return places().get(claim.sentence, len(places()))
