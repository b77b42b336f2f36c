"""`rebinding train BASE --out FOLDER`: train an adapter with which a language model does the task.

BASE is a folder, a GGUF file or a model on the Hub. An interrupted run resumes where it stopped. The adapter's card
names its base, by digest, and its licence: the one that the base states, or that of `--license`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from rebinding.cli.checks import check_number, check_output_folder, check_positive
from rebinding.experiments.prompts import MOST_PROMPTS
from rebinding.learned import files, lora
from rebinding.learned.card import PAGE, Card, Digest, Licence
from rebinding.learned.curriculum import BOXES, ORDERS, Recipe, words
from rebinding.learned.evaluation import Accuracy, evaluate
from rebinding.learned.shelf import file_digest
from rebinding.learned.training import NOTES, Step, Training
from rebinding.models import LoadedModel, Origin, load, origin
from rebinding.models.checkpoint import quiet_transformers
from rebinding.models.licence import stated_licence
from rebinding.task.answers import is_single_token
from rebinding.task.words import Vocabulary

BASE_KINDS = ("folder", "gguf", "hub")
"""Kinds of models that an adapter's description can name as its base."""
MOST_SEED = 2**63 - 1
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
    parser.add_argument("base", metavar="BASE", help="the base model: a folder, FILE.gguf or a Hub id")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="folder of the adapter and its card")
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
        "--prompts",
        type=int,
        default=120,
        metavar="N",
        help="prompts per design in the evaluation (default 120)",
    )


def run(options: argparse.Namespace) -> int:
    recipe, out = check(options), Path(options.out)
    licence = licence_of(origin(options.base), options.licence)
    loaded_model = load(options.base, dtype="float32")
    digest = digest_of(loaded_model)
    vocabulary = Vocabulary().keep(lambda word: is_single_token(loaded_model.tokenizer, word))
    check_words(vocabulary, recipe)
    training = Training(loaded_model.model, loaded_model.encoder(), vocabulary, recipe, options.name or options.base)
    adapter = training.run(out, _Progress(recipe.steps))
    files.write(out, adapter)
    print(f"wrote {out}", flush=True)
    before = measure_accuracy(loaded_model, vocabulary, options.prompts, "without an adapter")
    lora.merge(loaded_model.model, files.read_adapter(out))
    after = measure_accuracy(loaded_model, vocabulary, options.prompts, "with the adapter")
    Card(adapter.base, digest, licence, recipe, tuple(training.curve), before, after).write(out)
    (out / NOTES).unlink(missing_ok=True)
    print(f"wrote its card, {out / PAGE}: judge it with pytest claims --model {out}")
    if options.save_merged:
        with quiet_transformers():
            loaded_model.model.save_pretrained(options.save_merged)
            loaded_model.tokenizer.save_pretrained(options.save_merged)
        print(f"wrote {options.save_merged}")
    return 0


def check(options: argparse.Namespace) -> Recipe:
    """The recipe of the options; bad options are refused before anything is loaded."""
    check_number("--seed", options.seed, maximum=MOST_SEED)
    check_number("--prompts", options.prompts, minimum=1, maximum=MOST_PROMPTS)
    check_number("--boxes", options.boxes, minimum=BOXES, maximum=len(words(Vocabulary()).labels))
    check_positive("--learning-rate", options.learning_rate)
    check_output_folder("--out", Path(options.out))
    check_output_folder("--save-merged", Path(options.save_merged) if options.save_merged else None)
    base = origin(options.base)
    if base.kind not in BASE_KINDS:
        raise ValueError(
            f"{options.base} is a {base.kind} model, which no adapter can name as its base; give a folder, FILE.gguf or"
            " a Hub id owner/name"
        )
    return Recipe(
        *(
            options.order,
            options.seed,
            options.steps,
            options.stories,
            options.rank,
            2 * options.rank,
            options.learning_rate,
        ),
        boxes=options.boxes,
    )


def check_words(vocabulary: Vocabulary, recipe: Recipe) -> None:
    """Refuse a tokenizer that has too few of the task's words as single tokens."""
    count = len(words(vocabulary).objects)
    if count < recipe.boxes:
        raise ValueError(
            f"the base's tokenizer has {count} of the objects to train on as single tokens, and stories of"
            f" {recipe.boxes} boxes need {recipe.boxes}: give fewer --boxes or another base"
        )


def licence_of(base: Origin, option: str | None) -> Licence:
    """The licence of `--license`, else the one that the base states; an error if there is neither."""
    stated = stated_licence(base)
    text = stated if option is None else option
    if text is None:
        raise ValueError(
            f"{base.target} states no licence that can be read (general.license of a GGUF file; license: at the top of"
            " README.md): look up under which terms it may be adapted, and give --license TEXT, for example"
            " --license apache-2.0"
        )
    return Licence(text, stated)


def digest_of(loaded_model: LoadedModel) -> Digest:
    """The digest that identifies the base: sha256 of its file if it is one, else the model's fingerprint."""
    base = origin(loaded_model.name)
    if base.kind == "gguf":
        return Digest("the file", file_digest(Path(base.target)))
    return Digest("weights in float32, configuration and tokenizer", loaded_model.fingerprint)


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
