"""The decorator that declares a claim of the paper above its test, and the list of all claims of the suite."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from rebinding.paper.claim import EVERY, Claim, Metric, Rule, SectionName, Unit
from rebinding.paper.procedure import ProcedureName
from rebinding.testing import Changes, TestFunction, claims_of, declare, rows, with_controlled
from rebinding.verdicts import Verdict

ORDER = ("test_tracing", "test_circuit", "test_chain", "test_attention", "test_roles", "test_binding",
         "test_binding_signatures", "test_binding_correct", "test_robustness", "test_beyond",
         "test_beyond_binding")  # fmt: skip
"""Modules in the order of the paper; others come after these."""
OF_RUNS = "cross_model"
"""The module of claims about all models of a run."""
GEMMA_2, GEMMA_3, LLAMA_3B, LLAMA_8B = "gemma2-9b", "gemma3-12b", "llama3.2-3b", "llama3.1-8b"
"""The models of the paper."""


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
    reads: tuple[str, ...] = (),
    controlled: Changes | None = None,
    five_boxes: bool = False,
) -> Callable[[TestFunction], TestFunction]:
    """Declare a claim that the test below judges. Several decorators add up, from top to bottom.

    `controlled` adds a row of the same sentence under the controlled procedure, with these changes; `five_boxes` adds
    the rows of both procedures in stories of five boxes. `procedure="controlled"` is for a sentence without a published
    row. `needs` names the groups whose heads a claim needs (default: `group`), `section` its section (default: the
    module's `SECTION`), `headline` the headline claim that rests on it and on its controlled row, `reads` what its rule
    reads of sections 4.2 and 5: it is then judged under every candidate for the conventions that are open there.
    """
    if needs is None:
        needs = () if group is None else (group,)
    claim = Claim(id, statement, source, kind, metrics, statistic, where, unit, n, group, condition, printed, needs,
                  models, procedure=procedure, long=long, section=section, headline=headline,
                  reads=reads)  # fmt: skip
    if not five_boxes:
        return rows([claim], controlled=controlled)
    both = tuple(with_controlled([claim], controlled))
    return declare(*both, *(claim.with_five_boxes() for claim in both))


@dataclass(frozen=True)
class Row:
    """A claim and the function that judges it."""

    claim: Claim
    test: Callable[..., Verdict]


@cache
def catalogue() -> tuple[Row, ...]:
    """Every claim about one model, in the order of the paper."""
    names = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    modules = (*ORDER, *sorted(name for name in names if name.startswith("test_")))
    return tuple(row for name in dict.fromkeys(modules) for row in rows_in(name))


def claims() -> tuple[Claim, ...]:
    """The same claims without their tests."""
    return tuple(row.claim for row in catalogue())


@cache
def catalogue_of_runs() -> tuple[Row, ...]:
    """Every claim about all models of a run."""
    return tuple(rows_in(OF_RUNS))


def rows_in(name: str) -> Iterator[Row]:
    """The rows of one module, in the order of the file."""
    for test in vars(importlib.import_module(f"claims.{name}")).values():
        yield from (Row(claim, test) for claim in claims_of(test))


@cache
def by_id() -> Mapping[str, Claim]:
    """All claims by id, those about a run included."""
    return {row.claim.id: row.claim for row in (*catalogue(), *catalogue_of_runs())}


def claim(id: str) -> Claim:
    """The claim with this id."""
    if id not in by_id():
        similar = get_close_matches(id, by_id(), n=3) or [next(iter(by_id()))]
        raise ValueError(f"No claim has the id {id!r}. Similar ids: {', '.join(similar)}")
    return by_id()[id]


@cache
def places() -> Mapping[str, int]:
    """The position of every sentence in the order of the paper; claims about a run come last."""
    sentences = dict.fromkeys(claim.sentence for claim in by_id().values())
    return {sentence: number for number, sentence in enumerate(sentences)}


def place(claim: Claim) -> int:
    """The position of a claim's sentence in the order of the paper; a sentence outside the catalogue comes last."""
    return places().get(claim.sentence, len(places()))
