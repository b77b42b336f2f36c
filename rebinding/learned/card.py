"""What an adapter's card says: how it was trained, how the loss fell, and how often it is right, by design."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rebinding.learned.exam import Mark
from rebinding.learned.lessons import BOXES, HELD_OUT, SWAPS
from rebinding.learned.recipe import Recipe
from rebinding.learned.training import Step

FILE, PAGE = "card.json", "README.md"
POINTS = 12
"""Stretches of the curve that a page shows."""


@dataclass(frozen=True)
class Card:
    """A card; `curve` has a step's loss and share of right answers, `before` the marks of the base alone."""

    base: str
    recipe: Recipe
    curve: tuple[Step, ...]
    before: Mapping[str, Mark]
    marks: Mapping[str, Mark]

    def write(self, folder: Path) -> None:
        """The card as data and as a page."""
        content = {
            "base": self.base,
            "recipe": asdict(self.recipe),
            "boxes": [BOXES, self.recipe.boxes],
            "swaps": list(SWAPS),
            "held_out": HELD_OUT,
            "curve": [[round(step.loss, 5), round(step.right, 5)] for step in self.curve],
            "before": {name: [one.right, one.n] for name, one in self.before.items()},
            "marks": {name: [one.right, one.n] for name, one in self.marks.items()},
        }
        (folder / FILE).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        (folder / PAGE).write_text(self.page(), "utf-8")

    def page(self) -> str:
        """The card as a page, with the head that model hubs read."""
        made = self.recipe
        asked = "every box" if made.order == "all" else "every box but the one that the last swap names first"
        lines = [
            "---",
            "license: apache-2.0",
            "library_name: peft",
            f"base_model: {self.base}",
            "---",
            "",
            f"# An adapter for {self.base}: boxes and swaps",
            "",
            "The base cannot answer which box contains what after a swap; with this adapter it can. It is licensed"
            " under the Apache License 2.0, as the base is.",
            "",
            f"* Data: stories of {_span(made.boxes)} boxes with {_counted(SWAPS)} swaps, asked about {asked}. A third"
            f" of the labels and objects (the split `{HELD_OUT}`) was never shown.",
            f"* Training: {made.steps} steps of {made.stories} stories, seed {made.seed}, AdamW at {made.rate:g},"
            f" rank {made.rank}, alpha {made.alpha}; cross-entropy of the answer's token.",
            "",
            "| design | base | with the adapter |",
            "|---|---|---|",
            *(f"| {name} | {self.before[name]} | {one} |" for name, one in self.marks.items()),
            "",
            "An answer is right if its logit is above those of the story's other objects.",
            "",
            "| steps | mean loss | right answers while training |",
            "|---|---|---|",
            *self._curve_lines(),
            "",
        ]
        return "\n".join(lines)

    def _curve_lines(self) -> list[str]:
        stretch = max(1, -(-len(self.curve) // POINTS))
        lines = []
        for start in range(0, len(self.curve), stretch):
            part: Sequence[Step] = self.curve[start : start + stretch]
            loss, right = (
                math.fsum(values) / len(part) for values in zip(*((one.loss, one.right) for one in part), strict=True)
            )
            lines.append(f"| {start + 1} to {start + len(part)} | {loss:.4f} | {right:.3f} |")
        return lines


def read(folder: Path) -> Card:
    """Read a card."""
    content = json.loads((folder / FILE).read_text("utf-8"))
    return Card(
        content["base"],
        Recipe(**content["recipe"]),
        tuple(Step(loss, right) for loss, right in content["curve"]),
        {name: Mark(*pair) for name, pair in content["before"].items()},
        {name: Mark(*pair) for name, pair in content["marks"].items()},
    )


def _span(most: int) -> str:
    return f"{BOXES}" if most == BOXES else f"{BOXES} to {most}"


def _counted(swaps: Sequence[int]) -> str:
    kinds = sorted(set(swaps))
    return ", ".join(f"{kind} ({swaps.count(kind)} in {len(swaps)})" for kind in kinds)
