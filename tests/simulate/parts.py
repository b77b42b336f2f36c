"""The parts of the headline rules, deleted one by one.

`python -m tests.simulate.parts` looks for a counterexample of each, whose verdict changes to REPLICATED, or from it,
without the part, and prints them; this takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np
import pytest

import claims.test_binding_signatures as signatures
from claims.catalogue import catalogue
from rebinding.paper.claim import Rule
from rebinding.simulate.worlds import CONVENTIONS
from rebinding.verdicts import Verdict, effect, sentences
from rebinding.verdicts.sentences import Part
from tests.simulate.studies import judge_row, make_study
from tests.simulate.test_own_world import CASES, world_of

Names: TypeAlias = tuple[str, ...]
OTHER = {"binding.qk_cancels": "key_dominated", "binding.key_dominance": "matching"}
"""The signature of the other family, which these rows judge too; its parts belong to the other row."""
SAME_NUMBER = ("random_q", "random_k", "random_qk")
"""Random rows of section 5: alternatives for one printed number, which a world cannot tell apart."""


class Deletion:
    """Replaces the judge of parts by one that records every part, and leaves out the part `gone`."""

    def __init__(self) -> None:
        self.seen: dict[Names, None] = {}
        self.gone: Names | None = None
        self._inside: list[str] = []
        self._combine = sentences._combine

    def path(self, name: str) -> Names:
        """The part with those that it is a part of; conventions are no parts."""
        return tuple(part for part in (*self._inside, name) if part not in CONVENTIONS)

    def combine(self, kind: Rule, parts: Mapping[str, Part], level: float, **options: Any) -> Verdict:
        """Judge the parts that are not deleted."""
        names = [name for name in parts if name not in CONVENTIONS and not name.startswith("random circuits")]
        self.seen |= dict.fromkeys(map(self.path, names))
        kept = {name: partial(self._judge, name, part) for name, part in parts.items() if self.path(name) != self.gone}
        return self._combine(kind, kept, level, **options)

    def _judge(self, name: str, part: Part, *, level: float) -> Verdict:
        self._inside.append(name)
        try:
            return part(level=level)
        finally:
            self._inside.pop()


@contextmanager
def deleting(row: str) -> Iterator[Deletion]:
    """Judge a row with deletions."""
    deletion = Deletion()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sentences, "_combine", deletion.combine)
        if row in OTHER:
            never: dict[str, Part] = {"other": partial(effect, -np.ones(9), margin=0.0)}
            patch.setattr(signatures, OTHER[row], lambda *_: never)
        yield deletion


def parts_of(row: str, model: str) -> list[Names]:
    """The parts of a row on a model, in the world of the paper."""
    with deleting(row) as deletion:
        judge_row(row, make_study(world_of_case({"model": model})))
        return [path for path in deletion.seen if path[-1] not in ("other", *SAME_NUMBER)]


def carries(case: Mapping[str, Any], path: Names) -> bool:
    """Whether the verdict on a counterexample changes to REPLICATED, or from it, without a part."""
    with deleting(case["row"]) as deletion:
        study = make_study(world_of_case(case))
        with_it = judge_row(case["row"], study)
        deletion.gone = path
        return (judge_row(case["row"], study) == "REPLICATED") != (with_it == "REPLICATED")


def world_of_case(case: Mapping[str, Any]) -> Any:
    """The world of a counterexample."""
    with TemporaryDirectory() as folder:
        return world_of(Path(folder), case["model"], dict(case), case.get("like"))


def headline_rows() -> Iterator[tuple[str, str]]:
    """Every published headline row on each model of which the paper says it."""
    for row in catalogue():
        if row.claim.headline is not None and row.claim.procedure == "published":
            yield from ((row.claim.id, model) for model in row.claim.models)


def needed_parts() -> list[tuple[str, Names]]:
    """Every part of every headline row."""
    return list(dict.fromkeys((row, path) for row, model in headline_rows() for path in parts_of(row, model)))


def table() -> list[str]:
    """The table of parts in Markdown."""
    lines = ["| row | part | means without which it would not be noticed | model |", "|---|---|---|---|"]
    for row, path in needed_parts():
        cases = (case for case in CASES["case"] if case["row"] == row)
        case = next((case for case in cases if carries(case, path)), {"why": "NONE", "model": ""})
        lines.append(f"| `{row}` | {' / '.join(path)} | {case['why']} | {case['model']} |")
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
