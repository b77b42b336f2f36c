"""The settings of a run: the models, and how their claims are judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rebinding.evidence.store import Store
from rebinding.paper.procedure import BUILTIN_PROCEDURES, Procedure, builtin_procedure
from rebinding.study.engine import Engine
from rebinding.study.model_spec import ModelSpec
from rebinding.study.options import Options
from rebinding.task.designs import DesignName
from rebinding.task.text import WordingName

STAGES, ALL_POSITIONS = "discovered", "discovered-all-positions"
"""Circuits that are discovered when needed: by the paper's five stages, or by position-free discovery."""


Purpose: TypeAlias = Literal["judge", "simulate", "cost"]
"""The purpose of a run: verdicts on a model, error rates of verdicts, or the cost of a run."""


@dataclass(frozen=True)
class Settings:
    """The settings of a run, with the defaults of its options. `samples`, `circuit` and `dtype` None stand for the
    default of each claim, or model. The first `skip_prompts` prompts are skipped, and stories are
    written in a `wording`. With `remote`, models run on NDIF and
    no weights are needed here. With `every_token`, section 3 is traced also at tokens that no claim needs.
    `fingerprints` are those that models must have, by name."""

    models: tuple[ModelSpec, ...]
    samples: int | None = Options.samples
    skip_prompts: int = Options.skip_prompts
    design: DesignName = Options.design
    wording: WordingName = Options.wording
    every_token: bool = Options.every_token
    circuit: str | None = Options.circuit
    dtype: str | None = Options.dtype
    device: str = Options.device
    remote: bool = Options.remote
    procedures: tuple[Procedure, ...] = tuple(map(builtin_procedure, BUILTIN_PROCEDURES))
    store: Store | None = None
    engine: Engine = field(default_factory=Engine)
    report: Path | None = None
    purpose: Purpose = "judge"
    strict: bool = Options.strict_verdicts
    skip_unavailable: bool = Options.skip_unavailable
    fingerprints: Mapping[str, str] = field(default_factory=dict)
