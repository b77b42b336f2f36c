"""`rebinding prompt`: print a pair of prompts with marked roles and their token positions, and what a model does.

With `--model`, the answer of the model follows, and the attention of its groups' heads.

Without `--model`, the tokenizer that comes with the project is used, so nothing has to be downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO, get_args

import torch

from rebinding.cli.options import HELP, check_number
from rebinding.experiments.tokens import token_batch
from rebinding.models import LoadedModel, load, origin
from rebinding.paper.circuit import CircuitHead
from rebinding.planted import build, parse
from rebinding.study.options import MODEL, declare
from rebinding.surgery import Read
from rebinding.task.chat import FORMS, Form
from rebinding.task.designs import PAIRS, Design, Pair, Verb, design, pair_of
from rebinding.task.prompts import Encoded, Encoder, Prompt, aligned, render
from rebinding.task.text import WORDINGS
from rebinding.task.words import HALVES, THIRDS

GROUPS = ("B", "A")
"""The groups whose attention is printed: B finds the slot, A fetches the object."""


def answer_with_attention(name: str, form: Form | None, prompt: Prompt) -> list[str]:
    """A model's answer to a prompt; for planted models also the attention of groups B and A.

    Raises a `TemplateError` for a prompt that a planted model was not made for.
    """
    loaded_model, model_origin = load(name, form=form), origin(name)
    (encoded,) = loaded_model.encoder().encode([prompt])
    if model_origin.kind != "planted":
        return answer_lines(loaded_model, encoded)
    plant = build(parse(model_origin.target))
    plant.check_prompt(encoded)
    heads = [head for group in GROUPS for head in plant.circuit if head.group == group]
    return [*answer_lines(loaded_model, encoded), *attention_lines(loaded_model, encoded, heads)]


def answer_lines(loaded_model: LoadedModel, prompt: Encoded) -> list[str]:
    """The objects of the story as candidates, with their logits; the right one is marked."""
    encoder, contents = loaded_model.encoder(), prompt.prompt.story.state().values()
    words = [word for word in contents if word is not None]
    surgeon = loaded_model.surgeon()
    recording = surgeon.record(token_batch([prompt]))
    (logits,) = surgeon.run(recording, [], [Read("logits", at=[prompt.roles["readout"]])])
    scored = sorted(((float(logits[0, 0, encoder.answer_token(word)]), word) for word in words), reverse=True)
    right = prompt.prompt.answer
    scores = [f"{word} {logit:.2f}{' (right)' if word == right else ''}" for logit, word in scored]
    return [f"the model answers {scored[0][1]}: " + ", ".join(scores)]


def attention_lines(
    loaded_model: LoadedModel, prompt: Encoded, heads: Sequence[CircuitHead], *, min_attention: float = 0.05
) -> list[str]:
    """For each head, at its role: the tokens that get at least `min_attention` of its attention, by role name."""
    surgeon = loaded_model.surgeon()
    recording = surgeon.record(token_batch([prompt]))
    names: dict[int, str] = {}
    for role, place in prompt.roles.items():
        names.setdefault(place, role)
    lines = []
    for head in heads:
        at = prompt.roles[head.role]
        (pattern,) = surgeon.run(recording, [], [Read("pattern", at=[at], head=[(head.layer, head.head)])])
        mass = pattern[0, 0, 0]  # (key,)
        keys = [int(key) for key in torch.argsort(mass, descending=True) if float(mass[key]) >= min_attention]
        targets = [f"{prompt.pieces[key]} ({names.get(key, f'token {key}')}) {float(mass[key]):.2f}" for key in keys]
        lines.append(f"{head.group} {head.layer}.{head.head} at {head.role} attends to " + ", ".join(targets))
    return lines


PAIR = "swap_target_box_to_remaining_context_box"
NO_ANSWER = "none: the asked box holds nothing that is known"
MARK, CHANGED, PLAIN = "\x1b[36m", "\x1b[1;33m", "\x1b[0m"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="NAME", help=f"{MODEL} (default: the project's own tokenizer)")
    parser.add_argument(
        "--answer", action="store_true", help="load the model and show its answer (planted ones always)"
    )
    parser.add_argument("--form", choices=FORMS, help="chat form (default: the one that fits the tokenizer)")
    declare(parser.add_argument, "--design")
    parser.add_argument(
        "--split",
        choices=(*HALVES, "none", *THIRDS),
        help="part of the words to draw from (default discovery in the counterbalanced design, else train)",
    )
    parser.add_argument("--id", type=int, default=0, metavar="N", help="prompt id, from 0 on (default 0)")
    parser.add_argument(
        "--pair",
        choices=PAIRS,
        default=PAIR,
        metavar="KIND",
        help=f"how the counterfactual is made (default {PAIR}): {', '.join(PAIRS)}",
    )
    parser.add_argument("--boxes", type=int, default=3, metavar="N", help=HELP["--boxes"])
    parser.add_argument(
        "--operations",
        type=int,
        default=1,
        metavar="N",
        help="operations (see --verb) that the answer depends on (default 1)",
    )
    parser.add_argument("--verb", choices=get_args(Verb), default="swap", help="what the operations do (default swap)")
    parser.add_argument("--narrative", action="store_true", help="neutral sentences around the statements")
    parser.add_argument(
        "--wording", choices=WORDINGS, default="published", help="words of the story: a paraphrase (default published)"
    )
    parser.add_argument(
        "--distractor",
        choices=("before", "after"),
        help="also swap two boxes that do not matter (default: no such swap)",
    )
    parser.add_argument("--json", action="store_true", help=HELP["--json"])


def run(options: argparse.Namespace) -> int:
    """Print a pair and the model's answer to it. Errors are raised before anything is printed."""
    if options.answer and options.model is None:
        raise ValueError("--answer needs a --model to ask; planted:pointer comes with the project")
    check_number("--operations", options.operations)
    encoder = Encoder(_tokenizer(options.model), options.form)
    stories = design(
        options.design,
        split=options.split,
        boxes=options.boxes,
        operations=options.operations,
        verb=options.verb,
        distractor=options.distractor,
        narrative=options.narrative,
        wording=options.wording,
        tokenizer=encoder.tokenizer,
    )
    pair = pair_of(stories, options.id, options.pair)
    if options.json:
        if options.answer:
            raise ValueError("--json prints prompts and --answer runs a model; leave one of them out")
        print(json.dumps(plain(stories, pair, encoder), indent=1))
        return 0
    lines = [describe(stories, pair, encoder, colour=_colour(sys.stdout))]
    if options.answer or (options.model or "").strip().startswith("planted:"):
        lines += ["", *_answer(options, pair.original)]
    print("\n".join(lines))
    return 0


def _answer(options: argparse.Namespace, prompt: Prompt) -> list[str]:
    """The model's answer; for a planted model that was not made for the prompt, the reason why there is none."""
    from rebinding.cli.prompt import answer_with_attention
    from rebinding.planted import TemplateError  # imports torch, only needed for an answer

    try:
        return answer_with_attention(options.model, options.form, prompt)
    except TemplateError as error:
        if options.answer:
            raise
        return [f"{options.model} is not asked: {error}"]


def plain(stories: Design, pair: Pair, encoder: Encoder) -> dict[str, Any]:
    """Both prompts for programs: text, token ids, positions of roles, and answer."""
    sides = zip(("original", "counterfactual"), encoder.encode((pair.original, pair.counterfactual)), strict=True)
    return {
        "design": stories.name,
        "split": stories.split,
        "id": pair.id,
        "pair": pair.mode,
        "form": encoder.form,
        **{
            side: {
                "text": encoded.text,
                "ids": list(encoded.ids),
                "roles": encoded.roles,
                "answer": encoded.prompt.answer if encoded.prompt.answerable else None,
            }
            for side, encoded in sides
        },
    }


def describe(stories: Design, pair: Pair, encoder: Encoder, *, colour: bool = False) -> str:
    """Both prompts with roles marked as [word] (changed tokens as [[word]]; or both in colour), then the roles' table.

    The table has a row for each role: its token position and word in the original and in the counterfactual.
    """
    original, counterfactual = encoder.encode((pair.original, pair.counterfactual))
    same_length = len(original) == len(counterfactual)
    changed = frozenset(aligned(original, counterfactual)) if same_length else frozenset()
    lines = [f"{stories.name} design, split {stories.split}, id {pair.id}, pair {pair.mode}, form {encoder.form}"]
    for title, encoded in (("original", original), ("counterfactual", counterfactual)):
        answer = encoded.prompt.answer if encoded.prompt.answerable else NO_ANSWER
        text = _mark_roles(encoded, encoder, changed, colour)
        lines += ["", f"{title} ({len(encoded)} tokens, answer: {answer})", text]
    lines += ["", *_table(original, counterfactual)]
    if same_length:
        lines += ["", f"tokens that differ: {', '.join(map(str, sorted(changed))) or 'none'}"]
    else:
        lines += ["", "the prompts differ in length, so their positions do not correspond"]
    return "\n".join(lines)


def _mark_roles(encoded: Encoded, encoder: Encoder, changed: frozenset[int], colour: bool) -> str:
    text = encoded.text
    spans = render(encoded.prompt, encoder.form, encoder.tokenizer).spans
    for role, (start, end) in sorted(spans.items(), key=lambda item: -item[1][0]):
        differs = encoded.roles[role] in changed
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
        (place, word), (other_place, other_word) = _place(original, role), _place(counterfactual, role)
        rows.append(f"{role:24}{place:>10} {word:14}{other_place:>14} {other_word}".rstrip())
    return rows


def _place(encoded: Encoded, role: str) -> tuple[str, str]:
    if role not in encoded.roles:
        return "-", ""
    position = encoded.roles[role]
    return str(position), repr(encoded.tokenizer.decode([encoded.ids[position]]).strip(" "))[1:-1]


def _tokenizer(name: str | None) -> Any:
    """The tokenizer of a model; its weights are not read."""
    from rebinding.planted.tokenizer import build_tokenizer

    if name is None:
        return build_tokenizer()
    from rebinding.models.checkpoint import open_tokenizer
    from rebinding.models.hub import fetch
    from rebinding.models.names import of_base, origin

    model_origin = origin(name)
    if model_origin.kind in ("planted", "shape"):
        return build_tokenizer()
    model_origin = of_base(model_origin)
    if model_origin.kind == "gguf":
        from rebinding.models.gguf import open_gguf_tokenizer

        return open_gguf_tokenizer(Path(model_origin.target))
    if model_origin.kind == "folder":
        return open_tokenizer(Path(model_origin.target))
    return open_tokenizer(fetch(model_origin.target, model_origin.revision))


def _colour(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ
