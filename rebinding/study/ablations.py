"""Ablations of a circuit, as a study requests them."""

from __future__ import annotations

from typing import Any

from rebinding.evidence import Evidence
from rebinding.experiments.circuit.request import Comparison, request_ablation
from rebinding.experiments.paths.request import sizes_before_pruning
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import CircuitConventions
from rebinding.study.log import EvidenceLog
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.task.designs import DesignName


def measure_ablation(
    model: ModelUnderTest,
    log: EvidenceLog,
    heads: Circuit,
    origin: str,
    comparison: Comparison,
    n: int,
    means: DesignName,
    name: DesignName,
    conventions: CircuitConventions,
    **design: Any,
) -> Evidence:
    """A circuit and its `comparison` on n prompts of a design, all other heads at their mean over design `means`; over
    the run's design where no box is left out of the operations."""
    prompts = model.session.prompts
    stories = prompts.design(name, **design)
    has_bystander = stories.operations + 2 <= stories.boxes
    means_design = means if has_bystander else model.settings.design
    options: dict[str, Any] = {"comparison": comparison, "match": conventions.random, "answers": conventions.answers}
    if origin == "published" and comparison == "groups" and conventions.random == "role":
        options["unpruned"] = sizes_before_pruning()
    request = request_ablation(prompts, heads, stories, means_design, n=n, **options)
    return log.get(model.session, request, circuit=origin)
