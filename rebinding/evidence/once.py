"""What many rows ask of one piece of evidence is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from rebinding.evidence.evidence import Evidence

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def once(function: Callable[Concatenate[Evidence, Asked], Found]) -> Callable[Concatenate[Evidence, Asked], Found]:
    """A function of a piece of evidence and hashable values, whose results are kept as long as the evidence is.

    Evidence does not change once it is made; whoever is given a result leaves it as it is, too.
    """
    known: WeakKeyDictionary[Evidence, dict[Any, Found]] = WeakKeyDictionary()

    @wraps(function)
    def found(evidence: Evidence, /, *told: Asked.args, **named: Asked.kwargs) -> Found:
        of_this, key = known.setdefault(evidence, {}), (told, tuple(sorted(named.items())))
        if key not in of_this:
            of_this[key] = function(evidence, *told, **named)
        return of_this[key]

    return found
