"""What `rebinding train` trains, from its options; bad options are refused before anything is loaded."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from rebinding.cli.checks import check_number, check_output_folder, check_positive
from rebinding.experiments.prompts import MOST_PROMPTS
from rebinding.learned.card import Card, Digest, Licence
from rebinding.learned.curriculum import BOXES, Recipe, words
from rebinding.learned.shelf import VARIABLE, Learned, file_digest, parse
from rebinding.models import LoadedModel, Origin, origin
from rebinding.models.licence import stated_licence
from rebinding.task.answers import is_single_token
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
class Plan:
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


def make_plan(options: argparse.Namespace) -> Plan:
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
    return Plan(options.base, options.name or options.base, recipe, Path(options.out), licence, options.prompts)


def _repetition(options: argparse.Namespace, learned: Learned) -> Plan:
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
    return Plan(
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
