"""The provenance of a model's numbers: every piece of evidence with its prompts, settings and duration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rebinding.evidence import Evidence
from rebinding.experiments import random_draws as seeds
from rebinding.report.folder import Model

SEEDS: Mapping[str, str] = {
    "random circuits": str(seeds.RANDOM_CIRCUITS),
    "order of the pruning walks": str(seeds.WALKS),
    "published random directions": ", ".join(f"{name} {seed}" for name, seed in seeds.PUBLISHED_NOISE.items()),
    "matched random directions, and control heads": str(seeds.MATCHED),
    "resampled selections of heads": str(seeds.RESAMPLED),
    "prompts": "the id of the prompt",
}
"""All seeds; each is fixed in the code."""


@dataclass(frozen=True)
class Piece:
    """A piece of evidence: its file, its duration, and its prompts."""

    name: str
    file: str
    seconds: float
    rows: int
    prompts: int
    ids: str
    design: str
    settings: Mapping[str, object]


@dataclass(frozen=True)
class Listing:
    """All evidence of a model."""

    pieces: tuple[Piece, ...]

    @property
    def seconds(self) -> float:
        return sum(piece.seconds for piece in self.pieces)


def list_evidence(model: Model) -> Listing:
    """Every piece of evidence of a model, by name."""
    return Listing(tuple(describe_evidence(model, name, evidence) for name, evidence in sorted(model.evidence.items())))


def describe_evidence(model: Model, name: str, evidence: Evidence) -> Piece:
    """One piece. Its prompts are those that have rows, not those that were searched for them."""
    entry = model.about["evidence"][name]
    ids = sorted({int(id) for id in evidence.rows.get("prompt", ())})
    return Piece(
        name,
        entry["file"],
        float(entry["seconds"]),
        len(evidence.rows),
        len(ids),
        f"{ids[0]} to {ids[-1]}" if ids else "",
        str(evidence.settings["facets"]["design"]),
        dict(sorted(evidence.settings["request"].items())),
    )
