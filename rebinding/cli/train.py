"""`rebinding train BASE --out FOLDER`: train an adapter with which a language model does the task.

What is trained follows from the options; bad ones are refused before anything is loaded.

BASE is a folder, a GGUF file or a model on the Hub. An interrupted run resumes where it stopped. The adapter's card
names its base, by digest, and its licence: the one that the base states, or that of `--license`.

`rebinding train learned:NAME` repeats the training of an adapter that the project has a card of.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from rebinding.cli.options import check_number, check_output_folder, check_positive
from rebinding.experiments.prompts import MOST_PROMPTS
from rebinding.learned import lora
from rebinding.learned.evaluation import Accuracy, evaluate
from rebinding.learned.shelf import CARD_FILE, CARD_PAGE, VARIABLE, Card, Digest, Learned, Licence, file_digest, parse
from rebinding.learned.training import BOXES, NOTES, ORDERS, Recipe, Training, TrainingStep, words
from rebinding.models import LoadedModel, Origin, load, origin
from rebinding.models.checkpoint import quiet_transformers
from rebinding.models.hub import stated_licence
from rebinding.task.prompts import is_single_token
from rebinding.task.words import Vocabulary

BASE_KINDS = ("folder", "gguf", "hub")
"""Kinds of models that an adapter's description can name as its base."""
MOST_SEED = 2**63 - 1
RECIPE_OPTIONS = ("order", "seed", "steps", "stories", "boxes", "rank", "cool", "accuracy")
"""Options with the names of a recipe's settings."""
OPTIONS = {f"--{name}": name for name in (*RECIPE_OPTIONS, "name")} | {
    "--learning-rate": "learning_rate",
    "--license": "licence",
}
"""The options that a repeated training takes from its card, with their names in the parsed options."""


@dataclass(frozen=True)
class TrainingPlan:
    """A training: the base to load, its name in the card, the recipe, the output folder, the licence, and the prompts
    per design of the evaluation.

    `repeats` is the learned model whose training is repeated, and `card` the project's card of it.
    """

    base: str
    name: str
    recipe: Recipe
    out: Path
    licence: Licence
    prompts: int
    repeats: Learned | None = None
    card: Card | None = None

    @property
    def model(self) -> str:
        """The name under which the trained model is loaded."""
        if self.repeats is not None and self.out == self.repeats.adapter_folder:
            return f"'{self.repeats.name}'"
        return str(self.out)


def make_plan(options: argparse.Namespace) -> TrainingPlan:
    """The plan of the options."""
    check_number("--prompts", options.prompts, minimum=1, maximum=MOST_PROMPTS)
    check_output_folder("--save-merged", Path(options.save_merged) if options.save_merged else None)
    check_output_folder("--out", Path(options.out) if options.out else None)
    base = origin(options.base)
    if base.kind == "learned":
        return _repetition(options, parse(base.target))
    recipe = _recipe(options)
    if base.kind not in BASE_KINDS:
        raise ValueError(
            f"{options.base} is a {base.kind} model, which no adapter can name as its base; give a folder, FILE.gguf or"
            " a Hub id owner/name"
        )
    if options.out is None:
        raise ValueError("--out FOLDER is missing: name the folder of the adapter, which may be new")
    licence = licence_of(base, options.licence)
    return TrainingPlan(options.base, options.name or options.base, recipe, Path(options.out), licence, options.prompts)


def _repetition(options: argparse.Namespace, learned: Learned) -> TrainingPlan:
    """The plan of a training by the recipe of a card."""
    changed = [option for option, name in OPTIONS.items() if _is_set(options, name)]
    if changed:
        raise ValueError(
            f"{changed[0]} is set, and {learned.name} is trained by the recipe of its card: leave"
            " it out, or give the base and --out for a training of your own"
        )
    if options.out is None and learned.is_distributed:
        raise ValueError(f"{learned.name} comes with the project: to train it again, give --out FOLDER")
    out = Path(options.out) if options.out else learned.adapter_folder
    check_output_folder(VARIABLE, out)
    card = Card.read(learned.folder)
    prompts = next(iter(card.after.values())).n
    return TrainingPlan(
        str(learned.base.find()), learned.base.name, card.recipe, out, card.licence, prompts, repeats=learned, card=card
    )


def _is_set(options: argparse.Namespace, name: str) -> bool:
    defaults = {**vars(Recipe()), "learning_rate": Recipe().rate, "cool": None, "name": None, "licence": None}
    return bool(getattr(options, name) != defaults[name])


def _recipe(options: argparse.Namespace) -> Recipe:
    check_number("--seed", options.seed, maximum=MOST_SEED)
    check_number("--boxes", options.boxes, minimum=BOXES, maximum=len(words(Vocabulary()).labels))
    check_number("--accuracy", options.accuracy, maximum=1)
    check_positive("--learning-rate", options.learning_rate)
    cool = max(options.steps // 2, 1) if options.cool is None else options.cool
    settings = {name: getattr(options, name) for name in RECIPE_OPTIONS} | {"cool": cool}
    return Recipe(rate=options.learning_rate, alpha=2 * options.rank, **settings)


def usable_words(loaded_model: LoadedModel, recipe: Recipe) -> Vocabulary:
    """The words that are single tokens; a tokenizer that has too few of them is refused."""
    vocabulary = Vocabulary().keep(lambda word: is_single_token(loaded_model.tokenizer, word))
    check_words(vocabulary, recipe)
    return vocabulary


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
    lora.write(plan.out, adapter)
    print(f"wrote {plan.out}", flush=True)
    digest = digest_of(loaded_model)
    if plan.card is None:
        before: Mapping[str, Accuracy] = measure_accuracy(loaded_model, vocabulary, plan.prompts, "without an adapter")
    else:
        before = plan.card.before  # of the same base
    lora.merge(loaded_model.model, lora.read_adapter(plan.out))
    after = measure_accuracy(loaded_model, vocabulary, plan.prompts, "with the adapter")
    weights = file_digest(plan.out / lora.WEIGHTS)
    Card(plan.name, digest, plan.licence, plan.recipe, tuple(training.curve), before, after, weights).write(plan.out)
    (plan.out / NOTES).unlink(missing_ok=True)
    print(f"wrote its card, {plan.out / CARD_PAGE}: judge it with pytest claims --model {plan.model}")
    if plan.recipe.accuracy is not None and not training.is_accurate:
        print(f"no check measured the wanted accuracy of {plan.recipe.accuracy:g}: try more --steps or another --seed")
    if plan.card is not None and plan.repeats is not None:
        print(compare_digest(weights, plan.card.adapter, plan.repeats.folder / CARD_FILE))
    if options.save_merged:
        with quiet_transformers():
            loaded_model.model.save_pretrained(options.save_merged)
            loaded_model.tokenizer.save_pretrained(options.save_merged)
        print(f"wrote {options.save_merged}")
    return 0


def compare_digest(digest: str, expected: str, card: Path) -> str:
    """Whether a repeated training gave the adapter of the project's card."""
    if digest == expected:
        return f"{lora.WEIGHTS} has the sha256 of the project's card: it is the adapter that the pages describe"
    return (
        f"{lora.WEIGHTS} has the sha256 {digest[:12]}..., the project's card {expected[:12]}...: this machine rounds"
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

    def __call__(self, number: int, step: TrainingStep) -> None:
        if self.first is None:
            self.first = number - 1
        if number % self.every and number != self.steps:
            return
        remaining = (time.monotonic() - self.start) / (number - self.first) * (self.steps - number)
        print(
            f"step {number}/{self.steps}  loss {step.loss:.4f}  right {step.right:.2f}  {remaining / 60:.1f} min left",
            flush=True,
        )
