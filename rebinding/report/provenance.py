"""Where a model's numbers come from: its weights, its prompts, and every piece of evidence with its cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rebinding.evidence import Evidence
from rebinding.experiments import seeds
from rebinding.report.folder import Model

SEEDS: Mapping[str, str] = {
    "random circuits": str(seeds.RANDOM_CIRCUITS),
    "order of the pruning walks": str(seeds.WALKS),
    "published random directions": ", ".join(f"{name} {seed}" for name, seed in seeds.PUBLISHED_NOISE.items()),
    "matched random directions, and heads that serve as controls": str(seeds.MATCHED),
    "resampled selections of heads": str(seeds.RESAMPLED),
    "prompts": "the id of the prompt",
}
"""Every seed is fixed in the code; these are all there are."""


@dataclass(frozen=True)
class Piece:
    """A piece of evidence: its file, what it took, and the prompts that it rests on."""

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
    """All of a model's evidence."""

    listed: tuple[Piece, ...]

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.listed)


def origins(model: Model) -> Listing:
    """Every piece of evidence of a model, by name."""
    return Listing(tuple(origin(model, name, one) for name, one in sorted(model.evidence.items())))


def origin(model: Model, name: str, evidence: Evidence) -> Piece:
    """One piece. Prompts are those that have rows, whatever was looked at to find them."""
    about = model.about["evidence"][name]
    ids = sorted({int(one) for one in evidence.rows.get("prompt", ())})
    told = evidence.settings["request"]
    design = str(evidence.settings["facets"]["design"])
    return Piece(
        name,
        about["file"],
        float(about["seconds"]),
        len(evidence.rows),
        len(ids),
        f"{ids[0]} to {ids[-1]}" if ids else "",
        design,
        dict(sorted(told.items())),
    )
