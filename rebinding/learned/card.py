"""The card of an adapter: its base, its licence, its training, its loss curve, and its accuracy by design."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rebinding.learned.curriculum import BOXES, HELD_OUT, SWAPS, Recipe
from rebinding.learned.evaluation import CHECKED, TO_LEARN, Accuracy
from rebinding.learned.files import WEIGHTS
from rebinding.learned.shelf import BASES, Learned
from rebinding.learned.training import Step

FILE, PAGE = "card.json", "README.md"
POINTS = 12
"""Rows of the loss curve on a page."""
IDENTIFIER = r"[a-z0-9][a-z0-9.+-]*"
"""The pattern of a licence identifier on model hubs; any other text is shown as the name of another licence."""


@dataclass(frozen=True)
class Digest:
    """sha256 of a base; `of` says what was hashed: the file, or parts of the model."""

    of: str
    sha256: str


@dataclass(frozen=True)
class Licence:
    """An adapter's licence, and the one that its base states, if it can be read."""

    text: str
    base: str | None

    def __post_init__(self) -> None:
        if not self.text.strip() or not self.text.isprintable():
            raise ValueError(f"--license {self.text!r}: give the name of a licence on one line, such as apache-2.0")

    def head(self) -> list[str]:
        """The licence lines of a page's front matter: a lower-case identifier, or the name of another licence."""
        if re.fullmatch(IDENTIFIER, self.text.lower()):
            return [f"license: {self.text.lower()}"]
        return ["license: other", f"license_name: {json.dumps(self.text, ensure_ascii=False)}"]

    def line(self) -> str:
        """The licence and its origin, in one sentence."""
        if self.text == self.base:
            return f"{self.text}, which the base states."
        stated = "none that could be read" if self.base is None else self.base
        return f"{self.text}, given by who trained it; the base states {stated}."


@dataclass(frozen=True)
class Card:
    """A card. `curve` is the loss and the share of right answers by step, `before` the accuracies of the base alone,
    `adapter` the sha256 of the file with the matrices."""

    base: str
    digest: Digest
    licence: Licence
    recipe: Recipe
    curve: tuple[Step, ...]
    before: Mapping[str, Accuracy]
    after: Mapping[str, Accuracy]
    adapter: str

    @classmethod
    def read(cls, folder: Path) -> Card:
        """Read the card of a folder."""
        content = json.loads((folder / FILE).read_text("utf-8"))
        return cls(
            content["base"],
            Digest(**content["base_digest"]),
            Licence(content["license"], content["base_license"]),
            Recipe(**content["recipe"]),
            tuple(Step(loss, right) for loss, right in content["curve"]),
            {name: Accuracy(*pair) for name, pair in content["before"].items()},
            {name: Accuracy(*pair) for name, pair in content["marks"].items()},
            content["adapter_sha256"],
        )

    def write(self, folder: Path) -> None:
        """Write the card as data and as a page."""
        content = {
            "base": self.base,
            "base_digest": asdict(self.digest),
            "adapter_sha256": self.adapter,
            "base_license": self.licence.base,
            "license": self.licence.text,
            "recipe": asdict(self.recipe),
            "boxes": [BOXES, self.recipe.boxes],
            "swaps": list(SWAPS),
            "held_out": HELD_OUT,
            "curve": [[round(step.loss, 5), round(step.right, 5)] for step in self.curve],
            "before": {name: [accuracy.right, accuracy.n] for name, accuracy in self.before.items()},
            "marks": {name: [accuracy.right, accuracy.n] for name, accuracy in self.after.items()},
        }
        (folder / FILE).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        (folder / PAGE).write_text(self.page(), "utf-8")

    def page(self) -> str:
        """The card as a page, with the front matter that model hubs read."""
        recipe, seed = self.recipe, self.recipe.seed
        questions = "every box" if recipe.order == "all" else "every box but the one that the last swap names first"
        lines = [
            "---",
            *self.licence.head(),
            "library_name: peft",
            f"base_model: {self.base}",
            "---",
            "",
            f"# An adapter for {self.base}: boxes and swaps",
            "",
            "With this adapter the base answers which box contains what after a swap. How often it is right, without"
            " the adapter and with it, is in the first table.",
            "",
            f"* Base: {self.base}; sha256 of {self.digest.of}: `{self.digest.sha256}`.",
            f"* Adapter: sha256 of `{WEIGHTS}`: `{self.adapter}`.{self._source()}",
            f"* Licence: {self.licence.line()}",
            f"* Data: stories of {_span(recipe.boxes)} boxes with {_counted(SWAPS)} swaps, asked about {questions}. A"
            f" third of the labels and objects (the split `{HELD_OUT}`) was never shown.",
            f"* Training: {len(self.curve)} steps of {recipe.stories} stories, seed {seed}, AdamW at {recipe.rate:g},"
            f" falling to zero over steps {recipe.steps - recipe.cool} to {recipe.steps}, rank {recipe.rank}, alpha"
            f" {recipe.alpha}; cross-entropy of the answer's token.{self._stop()}",
            "",
            "| design | base | with the adapter |",
            "|---|---|---|",
            *(f"| {name} | {self.before[name]} | {accuracy} |" for name, accuracy in self.after.items()),
            "",
            "An answer is right if its logit is above those of the story's other objects.",
            "",
            "| steps | mean loss | right answers while training |",
            "|---|---|---|",
            *self._curve_lines(),
            "",
        ]
        return "\n".join(lines)

    def _source(self) -> str:
        """Where the matrices are if they are not distributed with this page."""
        recipe, base = self.recipe, BASES.get(self.base)
        if base is None or base.terms is None:
            return ""
        name = Learned(base, recipe.order, recipe.seed, recipe.boxes).name
        return (
            f" The project does not distribute it, because of {base.terms}: `rebinding train '{name}'` makes it."
            " A processor that rounds otherwise gives another digest."
        )

    def _stop(self) -> str:
        """When training ends."""
        recipe = self.recipe
        if recipe.accuracy is None:
            return ""
        designs = "; ".join(TO_LEARN)
        return (
            f" There are at most {recipe.steps} steps; training ends once {recipe.accuracy:.0%} of {len(CHECKED)} fresh"
            f" prompts are right in each of these designs: {designs}."
        )

    def _curve_lines(self) -> list[str]:
        stretch = max(1, -(-len(self.curve) // POINTS))
        lines = []
        for start in range(0, len(self.curve), stretch):
            part: Sequence[Step] = self.curve[start : start + stretch]
            losses, shares = zip(*((step.loss, step.right) for step in part), strict=True)
            loss, right = (math.fsum(values) / len(part) for values in (losses, shares))
            lines.append(f"| {start + 1} to {start + len(part)} | {loss:.4f} | {right:.3f} |")
        return lines


def _span(most: int) -> str:
    return f"{BOXES}" if most == BOXES else f"{BOXES} to {most}"


def _counted(swaps: Sequence[int]) -> str:
    kinds = sorted(set(swaps))
    return ", ".join(f"{kind} ({swaps.count(kind)} in {len(swaps)})" for kind in kinds)
