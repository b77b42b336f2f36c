"""Procedures: all conventions of an experiment that a sentence leaves open, as data.

A sentence can be true of the published experiment and false of a better one. So it is judged up to twice: under
`published`, which follows the paper's released procedure to the letter, and under `controlled`, the best experiment
that we know. Both are TOML files (`procedures/*.toml`). A third procedure with one convention changed
(`--procedure FILE`) shows the effect of a single choice on a verdict.

Such a file begins with `like = "published"` (or `"controlled"`), has only what differs, and replaces that procedure.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from rebinding.task.chat import Form
from rebinding.task.designs import DesignName, NoiseKind, Split
from rebinding.task.prompts import AnswerRule, AnswerSet

ProcedureName: TypeAlias = Literal["published", "controlled"]
BUILTIN_PROCEDURES: tuple[ProcedureName, ...] = get_args(ProcedureName)
Readout: TypeAlias = Literal["colon", "either"]
"""The token whose queries are edited and whose logits are read: the ':' before the answer; or one of two tokens,
because the released code counts the tokens that are not padding (`readouts`)."""
EARLY = 2
"""The number of turns that end before the assistant's begins."""
COLON: Mapping[str, int] = MappingProxyType({"at ':'": 0})
EITHER: Mapping[str, int] = MappingProxyType({**COLON, "two tokens before ':'": EARLY})
"""The number of tokens removed from the end of a prompt, by the name of the readout."""
CHOICE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "exchanged": "Q+K with the keys of both slots",
        "source": "Q+K with the keys of slot i alone",
        "shifted": "key directions of the shifted kind",
        "both": "key directions of both kinds",
    }
)
"""Every choice of a convention that section 5 leaves open, with its name in the reason of a verdict."""
OPEN: Mapping[str, tuple[str, ...]] = MappingProxyType({"qk_keys": ("qk",), "key_means": ("k_box", "k_object")})
"""These conventions, each with the rows of the section's table that it is about."""
AS_RELEASED = ("exchanged", "shifted")
"""The choices of the released code."""
RELEASED, BY_PROCEDURE = "as released", "as the procedure says"
"""The names of the first candidate of section 5: with these choices, or with others."""


@dataclass(frozen=True)
class TracingConventions:
    """Section 3: the prompt pairs of activation patching, and what counts as the answer."""

    design: DesignName
    """The stories that are traced."""
    split: Split
    """The part of the vocabulary that they use."""
    ids: Literal["from_zero", "held_out"]
    """The first prompt: id 0, or an id after all prompts that something was chosen on."""
    rule: AnswerRule
    """The token that represents an answer."""
    candidates: Literal["original", "with_counterfactual"]
    """The objects among which the original's answer must have the largest logit."""
    lead: Literal["largest", "clear"]
    """Whether the first largest logit is enough, or it must lead by the margin."""
    scale: Literal["raw", "normalised"]
    """Hits less those of the unpatched run, as they are, or as a share of the hits that patching can restore."""
    readout: Literal["every_layer", "not_the_last"]
    """Layers that are patched at the readout when it is compared with the swap's full stop; in the last sixth of the
    layers the readout already has the answer."""


@dataclass(frozen=True)
class CircuitConventions:
    """Section 4.1: discovery and pruning of heads by path patching, and comparison with random heads."""

    design: DesignName
    """The stories for discovery and pruning."""
    noise: tuple[NoiseKind, ...]
    """The corrupt prompt of a pair; several where the published one is not known, the released default first."""
    frozen: tuple[Literal["all", "none"], ...]
    """Whether the other heads keep their clean output while a sender is patched; both where it is not known."""
    d_received_by: tuple[Literal["keys_values", "query"], ...]
    """The component of C that receives D: its keys and values at the label in the swap, or its query at the question's
    box."""
    scope: Literal["group", "head"]
    """Whether an edited key or value acts on its KV group, or on one query head."""
    score: Literal["probability", "logit"]
    """The effect of a sender: the relative change of the answer's probability, or the change of its lead in logits."""
    select: Literal["published", "negative", "sure"]
    """The heads that a stage keeps: the k lowest whatever their score, those below zero, or those surely below."""
    means: DesignName
    """The stories whose mean replaces the output of other heads (mean ablation)."""
    prune_by: Literal["label_logit", "margin"]
    """The score of pruning: the answer's own logit, or its margin over the best other object."""
    prune_step: float
    """A head is pruned if the score falls by less without it."""
    random: Literal["role", "role_and_layer"]
    """The properties that random circuits, and random draws of heads, share with the circuit."""
    answers: AnswerSet
    """The tokens that represent an object in evaluation and pruning; the largest of their logits counts."""

    @property
    def candidates(self) -> Mapping[str, CircuitConventions]:
        """Every discovery that may be the published one, by name: the first choice of every convention, which is the
        released one where there is one, and variants with one other choice each.

        Frozen heads move nothing from one token to another, so D cannot reach C's query: such a candidate finds no D on
        any model, and is left out if there is another."""
        first = replace(self, noise=self.noise[:1], frozen=self.frozen[:1], d_received_by=self.d_received_by[:1])
        every = [first]
        every += [replace(first, noise=(noise,)) for noise in self.noise[1:]]
        every += [replace(first, frozen=(frozen,)) for frozen in self.frozen[1:]]
        every += [replace(first, d_received_by=(part,)) for part in self.d_received_by[1:]]
        possible = [
            conventions
            for conventions in every
            if (conventions.frozen, conventions.d_received_by) != (("all",), ("query",))
        ] or every
        return {
            self._candidate_name(conventions.noise[0], conventions.frozen[0], conventions.d_received_by[0]): conventions
            for conventions in possible
        }

    def _candidate_name(self, noise: str, frozen: str, d_received_by: str) -> str:
        """The noise, and the other conventions that have several choices."""
        parts = [noise]
        parts += [f"{'others' if frozen == 'all' else 'nothing'} frozen"] if len(self.frozen) > 1 else []
        parts += [f"D received by {d_received_by.replace('_', ' and ')}"] if len(self.d_received_by) > 1 else []
        return " / ".join(parts)


@dataclass(frozen=True)
class RolesConventions:
    """Section 4.2: what is patched for each group, at which tokens, and in which direction."""

    places: Literal["paper", "published", "own_role"]
    """`paper`: attention patterns at the readout for all groups, as in the text; `published`: A's outputs, and the
    others' patterns at their own tokens, as in the released code; `own_role`: patterns of all, at their own tokens."""
    direction: Literal["code", "text", "both"]
    """The change of the answer's slot. In published stories `code` is from 0 to 1 and `text` from 1 to 0; `both` makes
    one unit of the two, for every id."""
    pointer: Literal["refilled", "structure"]
    """The change in a pointer pair: the order of the statements with new objects, or only the order."""
    candidates: Literal["as_run", "and_text"]
    """What the paper may have run: only these conventions, or also the text's (`paper`, `text`, `structure`)."""
    design: DesignName
    """The stories; `--design` replaces the published ones."""
    ids: Literal["first", "held_out"]
    """Prompts from id 0 on, or prompts without any other measurement; counterbalanced ones with held-out words too."""
    answers: AnswerRule
    """The token that represents an object."""
    future: Literal["keep", "mask"]
    """Whether a copied attention row keeps its attention to keys after the query."""
    readout: Readout

    @property
    def possible(self) -> Mapping[str, RolesConventions]:
        """What the paper may have run, by the name of where it differs: these conventions, and perhaps all of the
        text's. The text describes another experiment: what is exchanged, where, and which way the answer goes."""
        of_text = replace(self, places="paper", direction="text", pointer="structure")
        every = (self,) if self.candidates == "as_run" or self == of_text else (self, of_text)
        return {f"{conventions.places} places, {conventions.direction} direction": conventions for conventions in every}


@dataclass(frozen=True)
class BindingConventions:
    """Section 5: the shifts of queries and keys, and their measurement."""

    ids: Literal["first", "held_out"]
    """Prompts from id 0 on, which discovery uses too, or ids on which nothing was chosen."""
    scope: Literal["group", "head"]
    """Whether an edited key acts on its KV group, or on one query head."""
    read: Literal["shifted", "both"]
    """The context tokens whose attention counts: those whose keys are shifted, or always box and object."""
    switch: Literal["head", "example", "either"]
    """Whether switches are counted per head, or per example with the attention of all heads; or it is not known."""
    answers: AnswerRule
    """The token that represents an object (`rebinding.task.prompts`)."""
    pairs: Literal["first", "every"]
    """The one ordered pair of slots of the paper, or all of them, in counterbalanced stories."""
    batches: int
    """The number of disjoint sets of prompts, each with its own directions."""
    readout: Readout
    qk_keys: tuple[Literal["exchanged", "source"], ...]
    """Q+K: the keys of both slots are exchanged (code), or only those of slot i are shifted (text)."""
    key_means: tuple[Literal["shifted", "both"], ...]
    """Key directions are means over the kind of tokens that is shifted (code), or always over both kinds (text)."""
    heads: Literal["all", "on_slots"]
    """The heads of group B that count: all, or those with attention on the compared slots."""
    epsilon: float
    """The constant added to attention in the log ratio; the text says "a small constant"."""

    def possible(self, rows: Collection[str]) -> Mapping[str, BindingConventions]:
        """What the paper may have run for these rows of the table, by name: the first choice of every convention, and
        each other choice alone. A convention that is not about these rows adds no candidate."""
        choices = {name: getattr(self, name) for name, about in OPEN.items() if set(about) & set(rows)}
        first: dict[str, Any] = {name: options[:1] for name, options in choices.items()}
        is_released = all(option in AS_RELEASED for (option,) in first.values())
        chosen = {RELEASED if is_released else BY_PROCEDURE: first}
        for name, options in choices.items():
            chosen |= {CHOICE_NAMES[option]: {**first, name: (option,)} for option in options[1:]}
        return {name: replace(self, **options) for name, options in chosen.items()}


@dataclass(frozen=True)
class Procedure:
    """A name, the procedure that it replaces (`like`), and the conventions of every section."""

    name: str
    like: ProcedureName
    tracing: TracingConventions
    circuit: CircuitConventions
    roles: RolesConventions
    binding: BindingConventions
    path: Path | None = None
    """The file of a third procedure; None for the two of the package."""

    def candidates(self, section: str, rows: Collection[str]) -> Mapping[str, Procedure]:
        """This procedure with each choice that the paper may have made in section 4.2 (`roles`), or in section 5 for
        these rows of its table; the first is the released one. One convention differs at a time."""
        if section == "roles":
            return {name: replace(self, roles=conventions) for name, conventions in self.roles.possible.items()}
        possible = self.binding.possible(rows)
        return {name: replace(self, binding=conventions) for name, conventions in possible.items()}

    @property
    def plain(self) -> dict[str, Any]:
        """Every convention, as JSON."""
        return {name: asdict(getattr(self, name)) for name in _file("published")}


Conventions = TypeVar("Conventions")


@cache
def builtin_procedure(name: ProcedureName) -> Procedure:
    """One of the two procedures of the package."""
    return _procedure(name, name, _file(name))


def read_procedure(path: Path) -> Procedure:
    """A third procedure, named after its file; raises a ValueError for an invalid file."""
    try:
        content = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a procedure: {error}") from None
    like = content.pop("like", None)
    if like not in BUILTIN_PROCEDURES:
        raise ValueError(f"{path}: like = {like!r}; begin it with like = {' or '.join(map(repr, BUILTIN_PROCEDURES))}")
    if path.stem in BUILTIN_PROCEDURES:
        raise ValueError(f"{path}: {path.stem} is the name of a procedure that comes with the package; rename the file")
    try:
        return replace(_procedure(path.stem, like, _merge(_file(like), content)), path=path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _file(name: str) -> dict[str, Any]:
    return tomllib.loads(files("rebinding.paper").joinpath("procedures", f"{name}.toml").read_text())


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """The values of `above` where it has them, else those of `below`, section by section."""
    unknown = [name for name, value in above.items() if name not in below or not isinstance(value, dict)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: the sections of a procedure are {', '.join(below)}")
    return {name: {**section, **above.get(name, {})} for name, section in below.items()}


def _procedure(name: str, like: ProcedureName, content: Mapping[str, Any]) -> Procedure:
    kinds = {key: kind for key, kind in get_type_hints(Procedure).items() if key in content}
    return Procedure(name, like, **{key: _section(key, kind, content[key]) for key, kind in kinds.items()})


def _section(section: str, kind: type[Conventions], content: Mapping[str, Any]) -> Conventions:
    """The conventions of one section; raises for missing or unknown keys and for invalid values."""
    hints = get_type_hints(kind)
    if content.keys() != hints.keys():
        raise ValueError(f"[{section}] has the keys {', '.join(content) or '(none)'}; it must have {', '.join(hints)}")
    return kind(**{name: _value(f"[{section}] {name}", hint, content[name]) for name, hint in hints.items()})


def _value(what: str, hint: Any, value: Any) -> Any:
    """A convention with its declared type: one of some words, a list of them, or a number above 0."""
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{what} = {value!r}; give a list with one or more of {', '.join(get_args(_first(hint)))}")
        return tuple(_value(what, _first(hint), item) for item in value)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise ValueError(f"{what} = {value!r}; choose among {', '.join(map(str, get_args(hint)))}")
    if hint is int and (type(value) is not int or value < 1):
        raise ValueError(f"{what} = {value!r}; give a whole number above 0")
    if hint is float and (type(value) not in (int, float) or not value > 0):
        raise ValueError(f"{what} = {value!r}; give a number above 0")
    return value


def _first(hint: Any) -> Any:
    return get_args(hint)[0]


def differences(first: Procedure, second: Procedure) -> dict[str, tuple[Any, Any]]:
    """The conventions in which two procedures differ: `section.name` and both values."""
    differing: dict[str, tuple[Any, Any]] = {}
    for section in _file("published"):
        old, new = asdict(getattr(first, section)), asdict(getattr(second, section))
        differing |= {f"{section}.{name}": (old[name], new[name]) for name in old if old[name] != new[name]}
    return differing


def readouts(convention: Readout, form: Form | None) -> Mapping[str, int]:
    """The tokens at which sections 4.2 and 5 may have been read: the number of tokens after each, by name. `form` is
    None for a model that is not the paper's.

    The released code counts the n tokens of a prompt that are not padding, and reads token n. For a tokenizer without
    padding it uses the end-of-turn token as padding. Then the ends of the system's and the user's turn are not counted,
    and the code reads the blank line after the assistant's header, two tokens before the ':'. Whether this is so in the
    printed numbers of Llama cannot be known.

    A causal model computes the same at a token as in a prompt that ends with it. So prompts without their last two
    tokens are run, and everything else stays the same.
    """
    return EITHER if convention == "either" and form == "llama3" else COLON
