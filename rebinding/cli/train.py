"""`rebinding train BASE --out FOLDER`: train an adapter with which a language model does the task.

BASE is a folder, a GGUF file or a model on the Hub. An interrupted run resumes where it stopped. The adapter's card
names its base, by digest, and its licence: the one that the base states, or that of `--license`.

`rebinding train learned:NAME` repeats the training of an adapter that the project has a card of.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rebinding.cli.training_plan import digest_of, make_plan, usable_words
from rebinding.learned import files, lora
from rebinding.learned.card import FILE, PAGE, Card
from rebinding.learned.curriculum import ORDERS, Recipe
from rebinding.learned.evaluation import Accuracy, evaluate
from rebinding.learned.shelf import VARIABLE, file_digest
from rebinding.learned.training import NOTES, Step, Training
from rebinding.models import LoadedModel, load
from rebinding.models.checkpoint import quiet_transformers
from rebinding.task.words import Vocabulary

NUMBERS: Mapping[str, str] = MappingProxyType(
    {
        "seed": "the seed of the stories and of the first matrices",
        "steps": "training steps",
        "stories": "stories in a step",
        "boxes": "the most boxes of a story",
        "rank": "the rank of the added matrices",
    }
)
"""The integers of a recipe, with their meanings."""


def arguments(parser: argparse.ArgumentParser) -> None:
    defaults = Recipe()
    parser.add_argument(
        "base",
        metavar="BASE",
        help="the base model: a folder, FILE.gguf or a Hub id; or learned:NAME, to repeat the training of its adapter",
    )
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help=f"folder of the adapter and its card (required; with learned:NAME, by default its folder in {VARIABLE})",
    )
    parser.add_argument(
        "--save-merged",
        metavar="FOLDER",
        help="also write the base with the adapter merged into it (default: not written)",
    )
    parser.add_argument(
        "--name", metavar="NAME", help="the base's name in card and adapter, by which it is loaded (default: BASE)"
    )
    parser.add_argument(
        "--license",
        dest="licence",
        metavar="TEXT",
        help="the adapter's licence, for its card (default: the one that the base states, in general.license of a GGUF"
        " file or in license: of the README.md of a folder or Hub model; required where it states none; e.g. --license"
        " apache-2.0)",
    )
    parser.add_argument(
        "--order",
        choices=ORDERS,
        default=defaults.order,
        help=f"order in which the last swap may name the asked box: any, or as published (default {defaults.order})",
    )
    for name, meaning in NUMBERS.items():
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=f"{meaning} (default {default})")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=defaults.rate,
        metavar="X",
        help=f"the learning rate (default {defaults.rate:g})",
    )
    parser.add_argument(
        "--cool",
        type=int,
        metavar="N",
        help="last steps, over which the learning rate falls to zero (default: half of --steps)",
    )
    parser.add_argument(
        "--accuracy",
        type=float,
        metavar="X",
        help="end once this share of fresh prompts is right, published, counterbalanced and with words never shown"
        " (default: take all steps; e.g. --accuracy 0.97)",
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=120,
        metavar="N",
        help="prompts per design in the evaluation (default 120)",
    )


def run(options: argparse.Namespace) -> int:
    plan = make_plan(options)
    loaded_model = load(plan.base, dtype="float32")
    vocabulary = usable_words(loaded_model, plan.recipe)
    training = Training(loaded_model.model, loaded_model.encoder(), vocabulary, plan.recipe, plan.name)
    adapter = training.run(plan.out, _Progress(plan.recipe.steps))
    files.write(plan.out, adapter)
    print(f"wrote {plan.out}", flush=True)
    digest = digest_of(loaded_model)
    if plan.card is None:
        before: Mapping[str, Accuracy] = measure_accuracy(loaded_model, vocabulary, plan.prompts, "without an adapter")
    else:
        before = plan.card.before  # of the same base
    lora.merge(loaded_model.model, files.read_adapter(plan.out))
    after = measure_accuracy(loaded_model, vocabulary, plan.prompts, "with the adapter")
    weights = file_digest(plan.out / files.WEIGHTS)
    Card(plan.name, digest, plan.licence, plan.recipe, tuple(training.curve), before, after, weights).write(plan.out)
    (plan.out / NOTES).unlink(missing_ok=True)
    print(f"wrote its card, {plan.out / PAGE}: judge it with pytest claims --model {plan.model}")
    if plan.recipe.accuracy is not None and not training.is_accurate:
        print(f"no check measured the wanted accuracy of {plan.recipe.accuracy:g}: try more --steps or another --seed")
    if plan.card is not None and plan.repeats is not None:
        print(compare_digest(weights, plan.card.adapter, plan.repeats.folder / FILE))
    if options.save_merged:
        with quiet_transformers():
            loaded_model.model.save_pretrained(options.save_merged)
            loaded_model.tokenizer.save_pretrained(options.save_merged)
        print(f"wrote {options.save_merged}")
    return 0


def compare_digest(digest: str, expected: str, card: Path) -> str:
    """Whether a repeated training gave the adapter of the project's card."""
    if digest == expected:
        return f"{files.WEIGHTS} has the sha256 of the project's card: it is the adapter that the pages describe"
    return (
        f"{files.WEIGHTS} has the sha256 {digest[:12]}..., the project's card {expected[:12]}...: this machine rounds"
        " otherwise, and training enlarges the difference. It is another adapter by the same recipe; compare its"
        f" accuracies with those of {card}"
    )


def measure_accuracy(loaded_model: LoadedModel, vocabulary: Vocabulary, prompts: int, when: str) -> dict[str, Accuracy]:
    """Measure and print the accuracy of a model, one line per design."""
    accuracies = evaluate(loaded_model.model, loaded_model.encoder(), vocabulary, prompts)
    print(f"right answers {when}:")
    for name, accuracy in accuracies.items():
        print(f"  {name:32} {accuracy}", flush=True)
    return accuracies


class _Progress:
    """Prints a line every few steps: loss, right answers, and the remaining time."""

    def __init__(self, steps: int, every: int = 10) -> None:
        self.steps, self.every = steps, every
        self.start = time.monotonic()
        self.first: int | None = None

    def __call__(self, number: int, step: Step) -> None:
        if self.first is None:
            self.first = number - 1
        if number % self.every and number != self.steps:
            return
        remaining = (time.monotonic() - self.start) / (number - self.first) * (self.steps - number)
        print(
            f"step {number}/{self.steps}  loss {step.loss:.4f}  right {step.right:.2f}  {remaining / 60:.1f} min left",
            flush=True,
        )
