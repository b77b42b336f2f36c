"""A measurement of a claim's own: a function of the model that makes a table, stored and reported as evidence."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd

from rebinding.api.model import Model
from rebinding.evidence import Evidence, EvidenceError, Kind, Request
from rebinding.evidence.request import Facet, describe
from rebinding.evidence.sources import ROOT, code_hash, modules_of
from rebinding.evidence.store import Store, cache_key

Measure = Callable[..., pd.DataFrame]
"""Takes the model and plain arguments; returns a row, or several, for each prompt."""


@dataclass(frozen=True)
class Measurement(Request):
    """The request for a measurement: its function with the code of the file, its arguments, and the number of prompts.

    `arguments` is JSON, so that a request is hashable.
    """

    KIND: ClassVar[Kind] = Kind("measurement", ("prompt",), numbered=".+")
    function: str
    code: str
    arguments: str
    prompts: int

    @property
    def n(self) -> int:
        return self.prompts

    @property
    def facets(self) -> Mapping[str, Facet]:
        values = json.loads(self.arguments).items()
        return {
            "design": "own",
            "function": self.function,
            **{name: value if isinstance(value, str | int) else json.dumps(value) for name, value in values},
        }


def request_measurement(function: Measure, arguments: Mapping[str, Any], n: int) -> Measurement:
    """The request for what a function measures on n prompts with these arguments."""
    if not inspect.isfunction(function) or "<" in function.__qualname__:  # <lambda>, or <locals> of another function
        raise TypeError(
            f"a measurement is a function at the top level of its file, whose name and file name its evidence; got"
            f" {function!r}"
        )
    try:
        text = json.dumps(arguments, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the arguments of {function.__name__} are part of the name of its evidence, so they are plain numbers,"
            f" texts and lists of these: {error}"
        ) from None
    path = inspect.getsourcefile(function)
    if path is None:
        raise TypeError(
            f"{function.__name__} has no file: the name of its evidence has a hash of the code that made it"
        )
    return Measurement(function.__name__, hashlib.sha256(Path(path).read_bytes()).hexdigest(), text, n)


@dataclass(frozen=True, eq=False)
class Measuring:
    """The evidence source of one measurement; finished evidence comes from the store."""

    model: Model
    function: Measure
    store: Store | None

    def get(self, request: Request) -> Evidence:
        """The table of the function, whose numbers depend on its file, on this package and on the model."""
        assert isinstance(request, Measurement)

        def compute() -> Evidence:
            table = self.function(self.model, **json.loads(request.arguments))
            if not isinstance(table, pd.DataFrame) or "prompt" not in table:
                kind = f"a {type(table).__name__}"
                if isinstance(table, pd.DataFrame):
                    kind = f"a data frame with the columns {', '.join(map(repr, table.columns))}"
                raise EvidenceError(f"{request.function} returned {kind}, expected a data frame with a column 'prompt'")
            return describe(request, Evidence(request.KIND.name, table.reset_index(drop=True), {}))

        if self.store is None:
            return compute()
        loaded = self.model.loaded
        key = cache_key(loaded.fingerprint, loaded.dtype, code_of_package(), request.key)
        return self.store.remember(Evidence, request.KIND.name, key, compute)


def code_of_package() -> str:
    """The hash of the modules that a measurement can call: the public interface and all that it imports."""
    return code_hash(__name__, *modules_of("rebinding.api", ROOT), "rebinding.surgery.torch_surgeon")
