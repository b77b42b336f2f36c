"""Inputs for fuzzing; the only errors allowed are those that this project raises.

Every day a few hundred cases, the same in every run; `HYPOTHESIS_PROFILE=nightly` a million, drawn anew.
"""

from __future__ import annotations

import linecache
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EVERYDAY, EVERYDAY_PAGES = 200, 20
NIGHTLY = {"names": 160_000, "options": 135_000, "files": 108_000, "models": 54_000, "pages": 6_000}
"""Cases of a property of each sort, by how long one takes: a million in all, since six properties are of files."""


def cases(sort: str) -> settings:
    """How many cases a property tries; a page takes a while to make."""
    if os.environ.get("HYPOTHESIS_PROFILE") == "nightly":
        unhurried = [HealthCheck.too_slow, HealthCheck.data_too_large]
        return settings(max_examples=NIGHTLY[sort], deadline=None, derandomize=False, suppress_health_check=unhurried)
    n = EVERYDAY_PAGES if sort == "pages" else EVERYDAY
    return settings(max_examples=n, deadline=None, derandomize=True, database=None)


def refused(attempt: Callable[[], Any], *kinds: type[Exception]) -> str | None:
    """Why an attempt was refused, or None. Whatever is no error of ours is not caught."""
    try:
        attempt()
    except pytest.UsageError as error:
        return str(error)
    except ValueError as error:
        if not (isinstance(error, kinds) if kinds else is_package_error(error)):
            raise
        return str(error)
    return None


def is_package_error(error: Exception) -> bool:
    """Whether an error is of a class of this project, or was raised by a line of it that says so."""
    if type(error).__module__.startswith("rebinding."):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or "rebinding" not in trace.tb_frame.f_globals.get("__name__", ""):
        return False
    return linecache.getline(trace.tb_frame.f_code.co_filename, trace.tb_lineno).strip().startswith("raise ")


def typed(*alphabet: str) -> st.SearchStrategy[str]:
    """What somebody may type: pieces that mean something, in any order, among anything that a terminal can send."""
    any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=8)
    pieces = st.lists(st.one_of(st.sampled_from(alphabet), any_text), max_size=9)
    return pieces.map("".join)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
"""Any JSON, with the numbers that are none."""


def places(content: Any) -> list[tuple[Any, ...]]:
    """The way to everything inside some JSON, the whole first."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [(), *((key, *way) for key, value in inner for way in places(value))]


@st.composite
def mutated(draw: st.DrawFn, content: Any) -> Any:
    """The JSON with one to three of its parts exchanged, missing, or there under another name."""
    part = content
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(places(part)))
        part = _changed(part, way, draw(st.sampled_from(("exchanged", "missing", "renamed"))), draw(PLAIN))
    return part


def _changed(content: Any, way: Sequence[Any], kind: str, value: Any) -> Any:
    """A copy with another value at a place."""
    if not way:
        return value
    first, rest = way[0], way[1:]
    if isinstance(content, list):
        inner = [] if kind == "missing" and not rest else [_changed(content[first], rest, kind, value)]
        return [*content[:first], *inner, *content[first + 1 :]]
    if rest or kind == "exchanged":
        return {**content, first: _changed(content[first], rest, kind, value)}
    remaining = {name: item for name, item in content.items() if name != first}
    return remaining if kind == "missing" else {**remaining, str(value): content[first]}
