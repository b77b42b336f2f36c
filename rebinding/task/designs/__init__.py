"""Designs: stories, and the counterfactual that each is paired with."""

from rebinding.task.designs.design import (
    DESIGNS,
    NOISE_KINDS,
    PAIRS,
    Design,
    DesignName,
    NoiseKind,
    Pair,
    design,
    pair_of,
)
from rebinding.task.designs.scene import TRACING_MODES, Distractor, ModeName, TracingMode, Verb, mode_name, tracing_mode
from rebinding.task.words import DesignError, Split, Vocabulary

__all__ = [
    "DESIGNS",
    "NOISE_KINDS",
    "PAIRS",
    "TRACING_MODES",
    "Design",
    "DesignError",
    "DesignName",
    "Distractor",
    "ModeName",
    "NoiseKind",
    "Pair",
    "Split",
    "TracingMode",
    "Verb",
    "Vocabulary",
    "design",
    "mode_name",
    "pair_of",
    "tracing_mode",
]
