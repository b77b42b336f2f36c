"""Procedures: all conventions of an experiment that a sentence leaves open, as data.

A sentence can be true of the published experiment and false of a better one. So it is judged up to twice: under
`published`, which follows the paper's released procedure to the letter, and under `controlled`, the same sentence under
the best experiment that we know. Both are files beside this one (`procedures/*.toml`); a copy with one convention
changed is a third procedure (`--procedure FILE`), which is how one asks what a single choice does to a verdict.

Such a file begins with `like = "published"` (or `"controlled"`), says only what differs, and stands for those rows.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from rebinding.task.answers import AnswerRule, AnswerSet
from rebinding.task.chat import Form
from rebinding.task.designs import DesignName, NoiseKind, Split

ProcedureName: TypeAlias = Literal["published", "controlled"]
GIVEN: tuple[ProcedureName, ...] = get_args(ProcedureName)
Readout: TypeAlias = Literal["colon", "either"]
"""The token whose queries are edited and whose logits are read: the ':' that the answer follows; or that is not known,
because the released code counts the tokens that are no padding (`readouts`)."""
EARLY = 2
"""Two turns end before the assistant's begins."""
COLON: Mapping[str, int] = MappingProxyType({"at ':'": 0})
EITHER: Mapping[str, int] = MappingProxyType({**COLON, "two tokens before ':'": EARLY})
"""How many tokens of a prompt are left away."""


@dataclass(frozen=True)
class TracingConventions:
    """Section 3: which pairs residuals are exchanged in, and what counts as the answer."""

    design: DesignName
    """Which stories are traced."""
    split: Split
    """Which of the words they are drawn from."""
    ids: Literal["from_zero", "held_out"]
    """Where prompts begin: with the first there is, or behind those that anything was found on."""
    rule: AnswerRule
    """Which token stands for an answer."""
    candidates: Literal["original", "with_counterfactual"]
    """Among which objects the original's answer must have the largest logit."""
    lead: Literal["largest", "clear"]
    """Whether the first largest logit is enough, or it must lead by what counts."""
    scale: Literal["raw", "normalised"]
    """Hits less those of the unpatched run, as they are, or as a share of what there was to restore."""
    readout: Literal["every_layer", "not_the_last"]
    """Layers that are patched at the readout when it is held against the swap's end; in the last sixth of them the
    readout is about to say the answer."""


@dataclass(frozen=True)
class CircuitConventions:
    """Section 4.1: how heads are found, pruned, and held against random ones."""

    design: DesignName
    """Which stories discovery and pruning are run on."""
    noise: tuple[NoiseKind, ...]
    """What the corrupt prompt of a pair is; several, where it is not known which it was, the released default first."""
    frozen: tuple[Literal["all", "none"], ...]
    """Whether the other heads keep their clean output while a sender is patched; both, where it is not known."""
    d_heard_by: tuple[Literal["keys_values", "query"], ...]
    """What of C hears D: its keys and values at the label in the swap, or its query at the question's box."""
    scope: Literal["group", "head"]
    """Whether an edited key or value acts on its KV group, or on one query head."""
    score: Literal["probability", "logit"]
    """What a sender changes: the answer's probability, relatively, or its lead over the other objects in logits."""
    select: Literal["published", "negative", "sure"]
    """Which heads a stage keeps: the k lowest whatever they are, those below zero, or those surely below."""
    means: DesignName
    """The stories over whose mean other heads are held."""
    prune_by: Literal["label_logit", "margin"]
    """What pruning looks at: the answer's own logit, or its margin over the best other object."""
    prune_step: float
    """A head goes if this falls by less without it."""
    random: Literal["role", "role_and_layer"]
    """What random circuits, and blind draws of heads, have in common with the circuit."""
    answers: AnswerSet
    """Which tokens stand for an object where a circuit is evaluated and pruned; the largest of their logits counts."""

    @property
    def candidates(self) -> Mapping[str, CircuitConventions]:
        """Every discovery that it may have been, by a name that tells it from the others: the first choice of every
        convention, which is the released one where there is one, and each other choice with all else as it was.

        Frozen heads carry nothing from one token to another, so that of D on C's query nothing arrives: such a
        candidate finds no D on any model, and is left out where there is another."""
        first = replace(self, noise=self.noise[:1], frozen=self.frozen[:1], d_heard_by=self.d_heard_by[:1])
        every = [first]
        every += [replace(first, noise=(noise,)) for noise in self.noise[1:]]
        every += [replace(first, frozen=(frozen,)) for frozen in self.frozen[1:]]
        every += [replace(first, d_heard_by=(part,)) for part in self.d_heard_by[1:]]
        heard = [
            conventions
            for conventions in every
            if (conventions.frozen, conventions.d_heard_by) != (("all",), ("query",))
        ] or every
        return {
            self._said(conventions.noise[0], conventions.frozen[0], conventions.d_heard_by[0]): conventions
            for conventions in heard
        }

    def _said(self, noise: str, frozen: str, d_heard_by: str) -> str:
        """The noise, and what else is not known."""
        told = [noise]
        told += [f"{'others' if frozen == 'all' else 'nothing'} frozen"] if len(self.frozen) > 1 else []
        told += [f"D heard by {d_heard_by.replace('_', ' and ')}"] if len(self.d_heard_by) > 1 else []
        return " / ".join(told)


@dataclass(frozen=True)
class RolesConventions:
    """Section 4.2: what is exchanged for each group, where, and in which direction."""

    places: Literal["paper", "published", "own_role"]
    """`paper`: patterns at the readout for all, as the text says; `published`: A's outputs, the others' patterns at
    their own tokens, as the released code does; `own_role`: patterns for all, at their own tokens."""
    direction: Literal["code", "text", "both"]
    """How the answer's slot moves. In published stories `code` is from 0 to 1 and `text` from 1 to 0; `both` makes one
    unit of the two, for every id."""
    pointer: Literal["refilled", "structure"]
    """What a pointer pair changes: new objects beside the order of the statements, or the order alone."""
    candidates: Literal["as_run", "and_text"]
    """What the paper may have run: these conventions, or the text's (`paper`, `text`, `structure`)."""
    design: DesignName
    """Which stories are told; `--design` stands in for the published one."""
    ids: Literal["first", "held_out"]
    """Prompts from id 0 on, or such as nothing else was measured on; the counterbalanced ones in held-out words too."""
    answers: AnswerRule
    """Which token stands for an object."""
    future: Literal["keep", "mask"]
    """What becomes of attention, in a copied row, on keys after the query."""
    readout: Readout


@dataclass(frozen=True)
class BindingConventions:
    """Section 5: how queries and keys are shifted and what is read."""

    ids: Literal["first", "held_out"]
    """The prompts: from id 0 on, which discovery saw as well, or ids on which nothing was chosen."""
    scope: Literal["group", "head"]
    """Whether an edited key acts on its KV group, or on one query head."""
    read: Literal["shifted", "both"]
    """The context tokens whose attention counts: those whose keys are shifted, or box and object always."""
    switch: Literal["head", "example", "either"]
    """Switches are counted head by head, or once an example with the attention of all heads; or it is not known."""
    answers: AnswerRule
    """Which token stands for an object (`rebinding.task.answers`)."""
    pairs: Literal["first", "every"]
    """The one ordered pair of slots of the paper, or all of them, in counterbalanced stories."""
    batches: int
    """Disjoint sets of prompts from which directions are measured apart."""
    readout: Readout
    qk_keys: tuple[Literal["exchanged", "source"], ...]
    """Q+K: the keys of both slots are exchanged (code), or those of slot i alone are shifted (text)."""
    key_means: tuple[Literal["shifted", "both"], ...]
    """Key directions are means over the kind of tokens that is shifted (code), or over both kinds always (text)."""
    heads: Literal["all", "on_slots"]
    """The heads of group B that count: all, or those with attention on the slots that are compared."""
    epsilon: float
    """What is added to attention in the log ratio; the text says "a small constant"."""


@dataclass(frozen=True)
class Procedure:
    """A name, the rows that it stands for, and the conventions of every section."""

    name: str
    like: ProcedureName
    tracing: TracingConventions
    circuit: CircuitConventions
    roles: RolesConventions
    binding: BindingConventions
    path: Path | None = None
    """The file that it was read from, where somebody wrote one."""

    @property
    def plain(self) -> dict[str, Any]:
        """Every convention, as JSON."""
        return {name: asdict(getattr(self, name)) for name in _file("published")}


Conventions = TypeVar("Conventions")


@cache
def given(name: ProcedureName) -> Procedure:
    """One of the two that come with the package."""
    return _made(name, name, _file(name))


def read(path: Path) -> Procedure:
    """A procedure of one's own, named after its file; a ValueError says what is wrong in it."""
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read as a procedure: {error}") from None
    like = told.pop("like", None)
    if like not in GIVEN:
        raise ValueError(f"{path}: like = {like!r}; begin it with like = {' or '.join(map(repr, GIVEN))}")
    if path.stem in GIVEN:
        raise ValueError(f"{path}: {path.stem} is the name of a procedure that comes with the package; rename the file")
    try:
        return replace(_made(path.stem, like, _over(_file(like), told)), path=path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _file(name: str) -> dict[str, Any]:
    return tomllib.loads(files("rebinding.paper").joinpath("procedures", f"{name}.toml").read_text())


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """What `above` says, else what `below` says, section by section."""
    strange = [name for name, value in above.items() if name not in below or not isinstance(value, dict)]
    if strange:
        raise ValueError(f"{', '.join(strange)}: the sections of a procedure are {', '.join(below)}")
    return {name: {**section, **above.get(name, {})} for name, section in below.items()}


def _made(name: str, like: ProcedureName, told: Mapping[str, Any]) -> Procedure:
    kinds = {key: kind for key, kind in get_type_hints(Procedure).items() if key in told}
    return Procedure(name, like, **{key: _section(key, kind, told[key]) for key, kind in kinds.items()})


def _section(section: str, kind: type[Conventions], told: Mapping[str, Any]) -> Conventions:
    """The conventions of one section: all of them, none unknown, each one of its choices."""
    hints = get_type_hints(kind)
    if told.keys() != hints.keys():
        raise ValueError(f"[{section}] says {', '.join(told) or 'nothing'}; it has to say {', '.join(hints)}")
    return kind(**{name: _value(f"[{section}] {name}", hint, told[name]) for name, hint in hints.items()})


def _value(what: str, hint: Any, value: Any) -> Any:
    """A convention as its type has it: one of some words, a list of them, or a number above 0."""
    if get_origin(hint) is tuple:
        if not isinstance(value, list) or not value:
            raise ValueError(f"{what} = {value!r}; give a list with one or more of {', '.join(get_args(_first(hint)))}")
        return tuple(_value(what, _first(hint), one) for one in value)
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise ValueError(f"{what} = {value!r}; choose among {', '.join(map(str, get_args(hint)))}")
    if hint is int and (type(value) is not int or value < 1):
        raise ValueError(f"{what} = {value!r}; give a whole number above 0")
    if hint is float and (type(value) not in (int, float) or not value > 0):
        raise ValueError(f"{what} = {value!r}; give a number above 0")
    return value


def _first(hint: Any) -> Any:
    return get_args(hint)[0]


def differences(one: Procedure, other: Procedure) -> dict[str, tuple[Any, Any]]:
    """In which conventions two procedures differ: `section.name` and both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for section in _file("published"):
        first, second = asdict(getattr(one, section)), asdict(getattr(other, section))
        found |= {f"{section}.{name}": (first[name], second[name]) for name in first if first[name] != second[name]}
    return found


def readouts(convention: Readout, form: Form | None) -> Mapping[str, int]:
    """Every token at which sections 4.2 and 5 may have been read, by its name, with how many tokens behind it are left
    away; `form` is none where no paper was about the model.

    The released code counts the tokens of a prompt that are no padding, and reads the last of as many. Where a
    tokenizer has no padding it is given the token that ends a turn: then the ends of the system's and of the user's
    turn are not counted, and what is read is the blank line behind the assistant's header, two tokens before the ':'.
    Whether the printed numbers of Llama are such ones cannot be known.

    A model that reads from left to right does at a token what it does there in a prompt that ends with it. So prompts
    that are two tokens short are what is run, and everything else stays as it is.
    """
    return EITHER if convention == "either" and form == "llama3" else COLON
