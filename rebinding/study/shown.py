"""The first pair of a set of prompts as text for people, with the tokens in which the two differ set apart."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rebinding.evidence import PromptSet
from rebinding.experiments.prompts import Prompts
from rebinding.task.prompts import Encoded


def shown(prompts: Prompts, asked: PromptSet) -> dict[str, Any]:
    """The id, the original, and the counterfactual where there is one.

    A text is a list of pieces, of which every second one (from the second on) is where the two differ.
    """
    drawn = prompts.encode(asked)
    own, other = drawn.prompts[0], drawn.counterfactuals[0] if drawn.counterfactuals else None
    differs = [False] * len(own) if other is None else [a != b for a, b in zip(own.ids, other.ids, strict=True)]
    return {
        "id": asked.ids[0],
        "original": pieces(own, differs),
        "counterfactual": None if other is None else pieces(other, differs),
    }


def pieces(one: Encoded, differs: list[bool]) -> list[str]:
    """The text cut where tokens begin or cease to differ; what stands between two tokens belongs to the second."""
    spans = one.tokenizer(one.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    found, begin = [] if not differs[0] else [""], 0
    for _, tokens in groupby(range(len(differs)), key=differs.__getitem__):
        end = spans[list(tokens)[-1]][1]
        found.append(one.text[begin:end])
        begin = end
    found[-1] += one.text[begin:]
    return found
