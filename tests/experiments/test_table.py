"""The tables by experiment have the same names, and no class of requests is missing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages

import pytest

import rebinding.experiments
from rebinding.cost.source import BRANCHING as NOT_COSTED
from rebinding.evidence import Request
from rebinding.evidence.sources import sources
from rebinding.experiments.recheck import BRANCHING, NOISE
from rebinding.experiments.table import EXPERIMENTS, experiment_of
from rebinding.report.figures.draw import FIGURES
from rebinding.simulate.source import LEFT_OUT, SIMULATORS
from rebinding.study.measurement import Measurement
from tests.evidence.toy import POWERS, Powers

NAMES = set(EXPERIMENTS) - {POWERS.name}


def subclasses(cls: type[Request]) -> Iterator[type[Request]]:
    for subclass in cls.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_every_class_of_requests_is_in_the_table_once() -> None:
    for module in walk_packages(rebinding.experiments.__path__, f"{rebinding.experiments.__name__}."):
        import_module(module.name)
    classes = {cls for cls in subclasses(Request) if "KIND" in vars(cls) and cls.__module__.startswith("rebinding.")}
    classes.discard(Measurement)  # that of a claim of one's own has its function with it
    assert classes == {EXPERIMENTS[name].request for name in NAMES}
    assert len(classes) == len(NAMES) > 25


def test_tables_have_the_same_names() -> None:
    assert SIMULATORS.keys() | LEFT_OUT.keys() == NAMES
    assert not SIMULATORS.keys() & LEFT_OUT.keys()
    kinds = {use.kind.name for spec in FIGURES for use in spec.uses}
    assert len(kinds) > 5
    assert kinds <= NAMES
    assert {*NOISE, *BRANCHING, *(kind.KIND.name for kind in NOT_COSTED)} <= NAMES


def test_an_address_names_the_code_of_its_own_experiment() -> None:
    """An edit of one section must not make the evidence of all others anew."""
    for name in NAMES:
        own = EXPERIMENTS[name].run.__module__
        needed = set(sources(own))
        assert own in needed
        assert not needed & {"rebinding.experiments.table", "rebinding.experiments.workbench"}, name
        measured = {module.split(".")[2] for module in needed if module.endswith(".measure")}
        assert measured <= {own.split(".")[2]}, name


def test_a_class_without_an_entry_is_named() -> None:
    class Other(Powers):
        """Shares the name of another class."""

    with pytest.raises(LookupError, match=r"no experiment computes .*Other"):
        experiment_of(Other)
