"""The first pair of a set of prompts as text, split at the tokens in which the two differ."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rebinding.evidence import PromptSet
from rebinding.experiments.prompts import Prompts
from rebinding.task.prompts import Encoded


def example_pair(prompts: Prompts, prompt_set: PromptSet) -> dict[str, Any]:
    """The id, the original, and the counterfactual if there is one.

    A text is a list of pieces; the two prompts differ in the second, the fourth, and so on.
    """
    encoded = prompts.encode(prompt_set)
    original, counterfactual = encoded.prompts[0], encoded.counterfactuals[0] if encoded.counterfactuals else None
    other_ids = original.ids if counterfactual is None else counterfactual.ids
    differs = [a != b for a, b in zip(original.ids, other_ids, strict=True)]
    return {
        "id": prompt_set.ids[0],
        "original": pieces(original, differs),
        "counterfactual": None if counterfactual is None else pieces(counterfactual, differs),
    }


def pieces(encoded: Encoded, differs: list[bool]) -> list[str]:
    """The text split where tokens begin or cease to differ; characters between two tokens belong to the second."""
    spans = encoded.tokenizer(encoded.text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    parts, begin = [] if not differs[0] else [""], 0
    for _, tokens in groupby(range(len(differs)), key=differs.__getitem__):
        end = spans[list(tokens)[-1]][1]
        parts.append(encoded.text[begin:end])
        begin = end
    parts[-1] += encoded.text[begin:]
    return parts
