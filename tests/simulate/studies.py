"""Studies of the paper's models in simulated worlds, and what the suite's own tests say of them."""

from __future__ import annotations

from claims.catalogue import Row, catalogue
from fixtures.judging import judge_after_gates
from rebinding.simulate.rates import outcome
from rebinding.simulate.source import SimulatedEngine
from rebinding.simulate.worlds import Run, World
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study


def row(id: str) -> Row:
    """The row with this id."""
    return next(row for row in catalogue() if row.claim.id == id)


def make_study(world: World, *, seed: int = 0, samples: int | None = None) -> Study:
    """One sample of a world, with at most so many prompts a claim."""
    model = parse_model(world.model)
    return Study.of(
        ModelUnderTest(model, Settings((model,), samples=samples, engine=SimulatedEngine(Run(world, seed))))
    )


def judge_row(id: str, study: Study) -> str:
    """What a row's own test says after its gates, in a word."""
    judge = row(id)
    return outcome(judge_after_gates(judge.claim, study, judge.test))
