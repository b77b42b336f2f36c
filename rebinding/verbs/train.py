"""`python -m rebinding train BASE --out FOLDER`: an adapter with which a language model does the task.

BASE is any subject: a folder, a GGUF file, a model on the Hub. An interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rebinding.learned import files, lora
from rebinding.learned.card import PAGE, Card
from rebinding.learned.exam import Mark, exam
from rebinding.learned.lessons import ORDERS
from rebinding.learned.recipe import Recipe
from rebinding.learned.training import NOTES, Step, Training
from rebinding.subjects import Subject, load
from rebinding.subjects.checkpoint import discreet
from rebinding.world.answers import is_single_token
from rebinding.world.words import Vocabulary


def arguments(parser: argparse.ArgumentParser) -> None:
    usual = Recipe()
    parser.add_argument("base", metavar="BASE", help="a folder, FILE.gguf or a Hub id")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the adapter and its card are written")
    parser.add_argument("--merged", metavar="FOLDER", help="write the whole model there too, with the adapter in it")
    parser.add_argument("--name", help="what card and adapter call the base, which is found by it (default: BASE)")
    parser.add_argument("--order", choices=ORDERS, default=usual.order, help="which order of naming it sees")
    parser.add_argument("--seed", type=int, default=usual.seed, metavar="N")
    parser.add_argument("--steps", type=int, default=usual.steps, metavar="N")
    parser.add_argument("--stories", type=int, default=usual.stories, metavar="N", help="per step, each asked about")
    parser.add_argument("--boxes", type=int, default=usual.boxes, metavar="N", help="the most that a story has")
    parser.add_argument("--rank", type=int, default=usual.rank, metavar="N")
    parser.add_argument("--rate", type=float, default=usual.rate, metavar="X", help="the learning rate")
    parser.add_argument(
        "--prompts", type=int, default=120, metavar="N", help="per design, to tell how often it is right"
    )


def run(options: argparse.Namespace) -> int:
    recipe = Recipe(
        *(options.order, options.seed, options.steps, options.stories, options.rank, 2 * options.rank, options.rate),
        boxes=options.boxes,
    )
    out = Path(options.out)
    subject = load(options.base, dtype="float32")
    known = Vocabulary().keep(lambda word: is_single_token(subject.tokenizer, word))
    training = Training(subject.model, subject.encoder(), known, recipe, options.name or options.base)
    adapter = training.run(out, _Progress(recipe.steps))
    files.write(out, adapter)
    print(f"wrote {out}", flush=True)
    before = marks(subject, known, options.prompts, "without an adapter")
    lora.merge(subject.model, files.read(out))
    after = marks(subject, known, options.prompts, "with the adapter")
    Card(adapter.base, recipe, tuple(training.curve), before, after).write(out)
    (out / NOTES).unlink(missing_ok=True)
    print(f"wrote its card, {out / PAGE}: judge it with pytest claims --model {out}")
    if options.merged:
        with discreet():
            subject.model.save_pretrained(options.merged)
            subject.tokenizer.save_pretrained(options.merged)
        print(f"wrote {options.merged}")
    return 0


def marks(subject: Subject, known: Vocabulary, prompts: int, when: str) -> dict[str, Mark]:
    """How often a subject is right, told a line a design."""
    found = exam(subject.model, subject.encoder(), known, prompts)
    print(f"right answers {when}:")
    for name, one in found.items():
        print(f"  {name:32} {one}", flush=True)
    return found


class _Progress:
    """A line every few steps: loss, right answers, and how long the rest will take."""

    def __init__(self, steps: int, every: int = 10) -> None:
        self.steps, self.every = steps, every
        self.began = time.monotonic()
        self.first: int | None = None

    def __call__(self, number: int, step: Step) -> None:
        if self.first is None:
            self.first = number - 1
        if number % self.every and number != self.steps:
            return
        left = (time.monotonic() - self.began) / (number - self.first) * (self.steps - number)
        print(
            f"step {number}/{self.steps}  loss {step.loss:.4f}  right {step.right:.2f}  {left / 60:.1f} min left",
            flush=True,
        )
