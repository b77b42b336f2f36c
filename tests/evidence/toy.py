"""A request in blocks of three prompts that needs no model: the squares, or other powers, of their ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch

from rebinding.evidence import Evidence, Kind, OnPrompts
from rebinding.evidence.store import Store
from rebinding.experiments.table import EXPERIMENTS, Experiment, by_name
from rebinding.experiments.workbench import Workbench
from rebinding.models import LoadedModel
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import derive
from tests.families.models import tiny

POWERS = Kind("powers", ("prompt", "power"))
N = 10


@dataclass(frozen=True)
class Powers(OnPrompts):
    """Every id to the power of `exponent`."""

    KIND: ClassVar[Kind] = POWERS
    exponent: int = 2
    size: ClassVar[int] = 3

    @property
    def block(self) -> int:
        return self.size

    @property
    def block_is_large(self) -> bool:
        return True


def begin_block(ids: Sequence[int]) -> None:
    """Called before a block is computed; tests replace it."""


def measure_powers(bench: Workbench, request: Powers) -> Evidence:
    ids = request.prompts.ids
    begin_block(ids)
    rows = pd.DataFrame({"prompt": ids, "power": [number**request.exponent for number in ids]})
    return POWERS.evidence(rows, {"exponent": request.exponent})


EXPERIMENTS.update(by_name(Experiment(Powers, measure_powers)))


def bench_at(root: Path | None, *, loaded_model: str = "toy") -> Workbench:
    """A workbench whose model never runs; with a folder, evidence is stored there."""
    model = tiny("llama")
    loaded = LoadedModel(
        loaded_model,
        lambda: model,
        build_tokenizer(),
        derive(model),
        "raw",
        "float32",
        torch.device("cpu"),
        known_fingerprint=loaded_model,
    )
    return Workbench(loaded, None if root is None else Store(root))


def powers(bench: Workbench, ids: Sequence[int] = range(N), *, exponent: int = 2, design: str = "published") -> Powers:
    """The request on the prompts of some ids."""
    prompts = bench.prompts
    return Powers(prompts.draw(prompts.design(design), ids), exponent)
