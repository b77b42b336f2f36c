"""What was asked for: the models, and how their claims are to be judged."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rebinding.evidence.store import Store
from rebinding.paper.procedure import GIVEN, Procedure, given
from rebinding.study.engine import Engine, Here
from rebinding.study.model_spec import ModelSpec
from rebinding.task.designs import DesignName

STAGES, ANYWHERE = "discovered", "discovered-anywhere"
"""Circuits that are found when they are needed: by the paper's five stages, or by the search that is told no place."""


Purpose: TypeAlias = Literal["judge", "simulate", "cost"]
"""What the claims are run for: their verdicts on a model, how often each verdict comes out, or what a run takes."""


@dataclass(frozen=True)
class Settings:
    """The run as a whole. `samples`, `circuit` and `dtype` None stand for what each claim, or model, has by itself;
    `first` prompts are passed over before the first on which anything is judged; `remote`: models run on NDIF, and
    none of their weights are needed here; `every_token` has section 3 traced at tokens that no claim asks about."""

    models: tuple[ModelSpec, ...]
    samples: int | None = None
    first: int = 0
    design: DesignName = "published"
    every_token: bool = False
    circuit: str | None = None
    dtype: str | None = None
    device: str = "auto"
    remote: bool = False
    procedures: tuple[Procedure, ...] = tuple(map(given, GIVEN))
    store: Store | None = None
    engine: Engine = field(default_factory=Here)
    report: Path | None = None
    purpose: Purpose = "judge"
    strict: bool = False
    skip_unavailable: bool = False
