"""`python -m rebinding prompt`: a pair of prompts, with the words that play a role marked and their token positions.

Without `--model` the words are those of the tokenizer that comes with the project, so nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, TextIO, get_args

from rebinding.cli.checks import check_number
from rebinding.task.chat import FORMS
from rebinding.task.designs import DESIGNS, NOISE_KINDS, TRACING_MODES, Design, DesignError, Pair, Verb, design
from rebinding.task.prompts import Encoded, Encoder, Prompt, aligned, render
from rebinding.task.words import HALVES, THIRDS

ROLE_PAIRS = ("content_control", "pointer", "structure_only_pointer")
PAIRS = (*TRACING_MODES, *NOISE_KINDS, *ROLE_PAIRS)
MARK, CHANGED, PLAIN = "\x1b[36m", "\x1b[1;33m", "\x1b[0m"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help="an alias, a Hub id, a folder or planted:MECHANISM")
    parser.add_argument(
        "--answer", action="store_true", help="load the model and show its answer (planted ones always)"
    )
    parser.add_argument("--form", choices=FORMS, help="the chat form (default: the one that fits the tokenizer)")
    parser.add_argument("--design", choices=DESIGNS, default="published")
    parser.add_argument("--split", choices=(*HALVES, "none", *THIRDS), help="which part of the words to draw from")
    parser.add_argument("--id", type=int, default=0, metavar="N", help="prompt id, from 0 on")
    parser.add_argument(
        "--pair",
        choices=PAIRS,
        default="swap_target_box_to_remaining_context_box",
        metavar="KIND",
        help=f"how the counterfactual is made: {', '.join(PAIRS)}",
    )
    parser.add_argument("--boxes", type=int, default=3, metavar="N")
    parser.add_argument("--operations", type=int, default=1, metavar="N", help="how many swaps the answer depends on")
    parser.add_argument("--verb", choices=get_args(Verb), default="swap", help="what the operations do")
    parser.add_argument("--narrative", action="store_true", help="neutral sentences around the statements")
    parser.add_argument("--distractor", choices=("before", "after"), help="also swap two boxes that do not matter")


def run(options: argparse.Namespace) -> int:
    """Print a pair, and the model's answer to it; whatever is refused is refused before anything is printed."""
    if options.answer and options.model is None:
        raise ValueError("--answer needs a --model to ask; planted:pointer comes with the project")
    check_number("--operations", options.operations)
    encoder = Encoder(_tokenizer(options.model), options.form)
    drawn = design(
        options.design,
        split=options.split,
        boxes=options.boxes,
        operations=options.operations,
        verb=options.verb,
        distractor=options.distractor,
        narrative=options.narrative,
        tokenizer=encoder.tokenizer,
    )
    pair = pair_of(drawn, options.id, options.pair)
    lines = [describe(drawn, pair, encoder, colour=_colour(sys.stdout))]
    if options.answer or (options.model or "").strip().startswith("planted:"):
        lines += ["", *_answer(options, pair.original)]
    print("\n".join(lines))
    return 0


def _answer(options: argparse.Namespace, prompt: Prompt) -> list[str]:
    """What the model answers; of a planted one that was not made for the prompt, why it is not asked."""
    from rebinding.cli.answer import shown
    from rebinding.planted import TemplateError  # torch and a model only where an answer is wanted

    try:
        return shown(options.model, options.form, prompt)
    except TemplateError as error:
        if options.answer:
            raise
        return [f"{options.model} is not asked: {error}"]


def pair_of(drawn: Design, prompt_id: int, kind: str) -> Pair:
    """The pair of any kind that designs offer."""
    if kind in TRACING_MODES:
        return drawn.tracing(prompt_id, kind)
    for noise in NOISE_KINDS:
        if kind == noise:
            return drawn.noise(prompt_id, noise)
    match kind:
        case "content_control":
            return drawn.content_control(prompt_id)
        case "pointer":
            return drawn.pointer(prompt_id)
        case "structure_only_pointer":
            return drawn.structure_only_pointer(prompt_id)
    raise DesignError(f"there is no pair {kind!r}; the kinds are {', '.join(PAIRS)}")


def describe(drawn: Design, pair: Pair, encoder: Encoder, *, colour: bool = False) -> str:
    """Both prompts with roles marked as [word] (changed tokens as [[word]]; or both in colour), then the roles' table.

    The table has a row for each role: its token position and word in the original and in the counterfactual.
    """
    original, counterfactual = encoder.encode((pair.original, pair.counterfactual))
    same_length = len(original) == len(counterfactual)
    changed = frozenset(aligned(original, counterfactual)) if same_length else frozenset()
    lines = [f"{drawn.name} design, split {drawn.split}, id {pair.id}, pair {pair.mode}, form {encoder.form}"]
    for title, one in (("original", original), ("counterfactual", counterfactual)):
        answer = one.prompt.answer if one.prompt.answerable else "none: the asked box holds nothing that is known"
        lines += ["", f"{title} ({len(one)} tokens, answer: {answer})", _marked(one, encoder, changed, colour)]
    lines += ["", *_table(original, counterfactual)]
    if same_length:
        lines += ["", f"tokens that differ: {', '.join(map(str, sorted(changed))) or 'none'}"]
    else:
        lines += ["", "the prompts differ in length, so their positions do not correspond"]
    return "\n".join(lines)


def _marked(one: Encoded, encoder: Encoder, changed: frozenset[int], colour: bool) -> str:
    text = one.text
    spans = render(one.prompt, encoder.form, encoder.tokenizer).spans
    for role, (start, end) in sorted(spans.items(), key=lambda item: -item[1][0]):
        differs = one.roles[role] in changed
        if colour:
            left, right = (CHANGED if differs else MARK), PLAIN
        else:
            left, right = ("[[", "]]") if differs else ("[", "]")
        text = f"{text[:start]}{left}{text[start:end]}{right}{text[end:]}"
    return text


def _table(original: Encoded, counterfactual: Encoded) -> list[str]:
    roles = dict.fromkeys((*original.roles, *counterfactual.roles))
    rows = [f"{'role':24}{'original':>10} {'':14}{'counterfactual':>14}"]
    for role in roles:
        here, there = _place(original, role), _place(counterfactual, role)
        rows.append(f"{role:24}{here[0]:>10} {here[1]:14}{there[0]:>14} {there[1]}".rstrip())
    return rows


def _place(one: Encoded, role: str) -> tuple[str, str]:
    if role not in one.roles:
        return "-", ""
    position = one.roles[role]
    return str(position), repr(one.tokenizer.decode([one.ids[position]]).strip(" "))[1:-1]


def _tokenizer(name: str | None) -> Any:
    """The tokenizer of a subject; only the files that describe it are read, never its weights."""
    from rebinding.planted.tokenizer import build_tokenizer

    if name is None:
        return build_tokenizer()
    from rebinding.models.adapted import of_base
    from rebinding.models.checkpoint import open_tokenizer
    from rebinding.models.hub import fetch
    from rebinding.models.names import origin

    found = origin(name)
    if found.kind in ("planted", "shape"):
        return build_tokenizer()
    found = of_base(found)
    if found.kind == "gguf":
        from rebinding.models.gguf import open_gguf_tokenizer

        return open_gguf_tokenizer(Path(found.target))
    return open_tokenizer(Path(found.target) if found.kind == "folder" else fetch(found.target, found.revision))


def _colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
