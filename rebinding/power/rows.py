"""The rows of the paper with the functions that judge them, as a clone of the project has them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from rebinding.paper.claim import Claim
from rebinding.study.study import Study
from rebinding.verdicts import Verdict

FIRST = ("test_tracing", "test_circuit", "test_roles", "test_binding", "test_robustness")
"""Modules of rows in the order of the paper; all others come after these."""
Weigh: TypeAlias = Callable[[Claim, Study, Callable[[], Verdict]], Verdict]


@dataclass(frozen=True)
class Row:
    """A claim and its test."""

    claim: Claim
    test: Callable[[Claim, Study], Verdict]


@cache
def rows() -> tuple[Row, ...]:
    """Every row, in the order of the sections. The package does not know `claims/`, so it is looked up when asked."""
    there = sorted(one.name for one in pkgutil.iter_modules(_module("claims").__path__) if one.name.startswith("test_"))
    names = [*FIRST, *(name for name in there if name not in FIRST)]
    return tuple(row for name in names for row in _of(_module(f"claims.{name}")))


def claims() -> tuple[Claim, ...]:
    """What the rows say, in the same order."""
    return tuple(row.claim for row in rows())


def chosen(wanted: str | None) -> tuple[Row, ...]:
    """All rows, or those whose id begins so."""
    found = tuple(row for row in rows() if wanted is None or row.claim.id.startswith(wanted))
    if not found:
        sections = sorted({row.claim.id.partition(".")[0] for row in rows()})
        raise ValueError(f"no row's id begins with {wanted!r}; ids begin with {', '.join(sections)}, such as "
                         f"{rows()[0].claim.id}")  # fmt: skip
    return found


def weigh() -> Weigh:
    """Gates first and then the row, as a run of the claims does it."""
    found: Weigh = _module("fixtures.judging").weighed
    return found


def _of(module: Any) -> Iterator[Row]:
    for test in vars(module).values():
        for mark in getattr(test, "pytestmark", ()):
            if mark.name == "parametrize" and mark.args[0] == "claim":
                yield from (Row(claim, test) for claim in mark.args[1])


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0], "pytest"):
            raise
        raise ValueError(
            f"{name} cannot be imported ({error}): rows are judged by the tests in claims/, which an installed package"
            " does not have. Run this in the folder of a clone, with the extra [test] installed"
        ) from error
