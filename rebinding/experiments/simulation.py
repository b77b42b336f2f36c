"""Registry: which function draws simulated evidence of each kind of request. It is in the module `simulate` beside the
request."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar

import pandas as pd

from rebinding.evidence import Request
from rebinding.experiments.prompts import Prompts
from rebinding.paper.worlds import NotSimulated, Run

Simulator: TypeAlias = Callable[[Prompts, Any, Run], tuple[pd.DataFrame, dict[str, Any]]]
"""From prompts, a request and a sample of a world to rows, and to the settings that summaries look at."""
SIMULATORS: dict[type[Request], Simulator] = {}
LEFT_OUT: dict[type[Request], str] = {}
"""Why there is no simulated evidence of a kind of request."""
Function = TypeVar("Function", bound=Simulator)


def simulates(kind: type[Request]) -> Callable[[Function], Function]:
    """Register the function that draws evidence of a kind of request."""

    def register(function: Function) -> Function:
        SIMULATORS[kind] = function
        return function

    return register


def leave_out(kind: type[Request], why: str) -> None:
    """Register why evidence of a kind of request is not simulated; the table of rates shows the reason."""
    LEFT_OUT[kind] = why


def simulator_of(kind: type[Request]) -> Simulator:
    """The function that draws evidence of a kind of request; NotSimulated names a kind that has none, and why."""
    folder, _, module = kind.__module__.rpartition(".")
    if module == "request" and find_spec(f"{folder}.simulate"):
        import_module(f"{folder}.simulate")
    if kind not in SIMULATORS:
        name = kind.KIND.name
        raise NotSimulated(f"{name} ({LEFT_OUT[kind]})" if kind in LEFT_OUT else name)
    return SIMULATORS[kind]
