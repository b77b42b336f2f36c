"""The answer of a loaded model to a prompt, and the attention of its groups' heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rebinding.experiments.tokens import token_batch
from rebinding.models import LoadedModel, load, origin
from rebinding.paper.circuit import CircuitHead
from rebinding.planted import build, parse
from rebinding.surgery import Read
from rebinding.task.chat import Form
from rebinding.task.prompts import Encoded, Prompt

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
    (logits,) = surgeon.run(recording, [], [Read("logits", positions=[prompt.roles["readout"]])])
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
        (pattern,) = surgeon.run(recording, [], [Read("pattern", head.layer, positions=[at], heads=[head.head])])
        mass = pattern[0, 0, 0]  # (key,)
        keys = [int(key) for key in torch.argsort(mass, descending=True) if float(mass[key]) >= min_attention]
        targets = [f"{prompt.pieces[key]} ({names.get(key, f'token {key}')}) {float(mass[key]):.2f}" for key in keys]
        lines.append(f"{head.group} {head.layer}.{head.head} at {head.role} attends to " + ", ".join(targets))
    return lines
