"""How often plants are right, and by how much: `python -m tests.planted.accuracy [--prompts N] [NAME ...]`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from rebinding.planted.compiler import ARCHITECTURES
from rebinding.planted.mechanisms import MECHANISMS
from rebinding.planted.plant import GRADED, Plant, Specification, build, parse
from rebinding.task.designs import Design, design
from rebinding.task.prompts import Encoder, Prompt

BATCH = 8
"""Prompts in a pass: 50 of them, at five boxes, took 1.6 times as long a prompt on one core."""


@dataclass(frozen=True)
class Accuracy:
    """Right answers among the objects of the story, and the smallest margin of the answer over the other objects."""

    right: int
    n: int
    smallest_margin: float

    def __str__(self) -> str:
        return f"{self.right}/{self.n} ({self.smallest_margin:.1f})"


def conditions(boxes: int) -> Mapping[str, Design]:
    """The designs that a plant of so many boxes is tried on."""
    designs = {
        "no swap": design("published", boxes=boxes, operations=0),
        "published": design("published", boxes=boxes),
        "partner second": design("partner_second", boxes=boxes),
        "counterbalanced": design("counterbalanced", boxes=boxes),
    }
    if boxes >= 5:
        designs["distractor before"] = design("published", boxes=boxes, distractor="before")
        designs["distractor after"] = design("partner_second", boxes=boxes, distractor="after")
    return MappingProxyType(designs)


@torch.no_grad()
def accuracy(plant: Plant, prompts: Sequence[Prompt]) -> Accuracy:
    """Score the answer's logit against those of the story's other objects."""
    encoder = Encoder(plant.tokenizer)
    margins: list[float] = []
    encoded = encoder.encode(prompts)
    for start in range(0, len(encoded), BATCH):
        batch = encoded[start : start + BATCH]
        for prompt in batch:
            plant.check_prompt(prompt)
        ids = torch.tensor([prompt.ids for prompt in batch])  # (prompt, token)
        logits = plant.model(ids, use_cache=False, logits_to_keep=1).logits[:, -1]  # (prompt, vocabulary)
        for prompt, row in zip(batch, logits, strict=True):
            answer = encoder.answer_token(prompt.prompt.answer)
            rivals = [token for token in encoder.answer_tokens(prompt.prompt.story.objects) if token != answer]
            margins.append(float(row[answer] - row[rivals].max()))
    return Accuracy(sum(margin > 0 for margin in margins), len(margins), min(margins))


def table(specifications: Sequence[Specification], prompts: int) -> Iterator[str]:
    """One line per plant and condition."""
    yield f"{'plant':38} {'boxes':>5}  {'condition':18} right (smallest margin)"
    for specification in specifications:
        plant = build(specification)
        for name, stories in conditions(specification.boxes).items():
            result = accuracy(plant, [stories.prompt(number) for number in range(prompts)])
            yield f"{specification.name:38} {specification.boxes:5}  {name:18} {result}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table: by default every mechanism on every architecture, with 3 and 5 boxes."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted.accuracy", description=__doc__)
    parser.add_argument(
        "plants", nargs="*", metavar="NAME", help="such as pointer@gemma2?boxes=5; all if none is given"
    )
    parser.add_argument("--prompts", type=int, default=50, metavar="N", help="prompts per cell (default: 50)")
    parser.add_argument(
        "--boxes", type=int, nargs="+", default=[3, 5], help="of the plants if none is named (default: 3 5)"
    )
    parser.add_argument("--softness", type=float, default=GRADED, help="0 hard to 1 (default: %(default)s)")
    options = parser.parse_args(arguments)
    all_plants = [
        Specification(mechanism, architecture, boxes=boxes, softness=options.softness)
        for mechanism in MECHANISMS
        for architecture in ARCHITECTURES
        for boxes in options.boxes
    ]
    for line in table([parse(name) for name in options.plants] or all_plants, options.prompts):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
