"""Estimates by hand of the rows about attention and about the roles of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from rebinding.experiments.attention import AttentionToRoles, ShapedAttention
from rebinding.experiments.roles.request import Interchange, RandomInterchange
from tests.oracles.by_hand.grounds import Estimates, Grounds

MEASURED = {"pointer": ("pointer", "pointed_object"), "content": ("content_control", "new_object")}


def looks(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(AttentionToRoles)
    at = ["context_partner_object"] if ".a_" in g.claim.id else ["swap_asked", "swap_partner", "context_partner"]
    by_token, uniform = rows.groupby("token")["attention"].mean(), rows.groupby("prompt")["uniform"].first().mean()
    rivals = dict(by_token) | {"an even share": uniform}
    differences = {
        token: {name: by_token[token] - rival for name, rival in rivals.items() if name != token} for token in at
    }
    parts = {f"{token} over {name}": value for token, margins in differences.items() for name, value in margins.items()}
    return parts | {f"{part.partition(' ')[0]}: {part}": value for part, value in parts.items()}


def shapes(g: Grounds) -> Mapping[str, float]:
    """By kind of noise and label, how much attention falls, and how much of it after a tenth is taken off."""
    requests = g.all(ShapedAttention)
    estimates: dict[str, float] = {}
    for request, rows in requests:
        means = rows.groupby("token")[["before", "after"]].mean()
        kind = request.prompts.pairing[-1]
        for token in ("swap_asked", "swap_partner", "context_partner"):
            before, after = (float(means[column][token]) for column in ("before", "after"))
            name = f"{kind}: {token}" if len(requests) > 1 else token
            estimates |= {f"{name}: falls": before - after, f"{name}: by a tenth": 0.9 * before - after}
    return estimates


def looks_at_box(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(AttentionToRoles)
    box, even_share = rows[rows["token"] == "question_box"], rows.groupby("prompt")["uniform"].first()
    return {"": float(box["attention"].mean() - even_share.mean())}


def change(rows: pd.DataFrame, group: str, word: str) -> float:
    """What a group's patch does to a word, mean over an id's pairs and then over ids."""
    selected = rows[(rows["group"] == group) & (rows["word"] == word) & (rows["head"] < 0)]
    return float((selected["after"] - selected["before"]).groupby(selected["prompt"]).mean().mean())


Changes: TypeAlias = Callable[[str], Mapping[str, float]]
"""From a group to what its patch does, by target."""


def candidates(g: Grounds) -> Mapping[str, Changes]:
    """The row's own conventions, and the text's where the paper may have had these; by name, if there are two."""
    requests = {(request.mode, request.direction): None for request, _ in g.all(Interchange)}
    has_many = len(requests) > 1
    return {
        f"{mode} places, {direction} direction" if has_many else "": partial(changes, g, mode, direction)
        for mode, direction in requests
    }


def changes(g: Grounds, mode: str, direction: str, group: str) -> Mapping[str, float]:
    """By target, under some conventions."""
    values = {}
    for target, (pairs, word) in MEASURED.items():
        for _, rows in g.all(Interchange, counterfactual=pairs, mode=mode, direction=direction):
            values[target] = change(rows, group, word)
    return values


def estimate_candidates(parts: Callable[[Changes], Mapping[str, float]]) -> Estimates:
    """The parts of a sentence under every convention."""

    def estimates(g: Grounds) -> Mapping[str, float]:
        return {
            joined(name, part): value
            for name, changes in candidates(g).items()
            for part, value in parts(changes).items()
        }

    return estimates


def joined(name: str, part: str) -> str:
    """The name of a part under a convention; `@0` is a place, and no name."""
    return f"{name}{part}" if not name or not part or part.startswith("@") else f"{name}: {part}"


def is_pointer(changes: Changes) -> Mapping[str, float]:
    b = changes("B")["pointer"]
    return {f"B over {group}": b - changes(group)["pointer"] for group in "ACD"}


def raises(changes: Changes) -> Mapping[str, float]:
    pointer, content = changes("B")["pointer"], changes("B")["content"]
    return {
        "pointer up": pointer,
        "content up by less than half": pointer / 2 - content,
        "content down by less than half": pointer / 2 + content,
    }


def raises_not(changes: Changes) -> Mapping[str, float]:
    pointer, content = changes("B")["pointer"], changes("B")["content"]
    return {
        "pointer not up": -pointer,
        "content up by more than half": content - pointer / 2,
        "content down by more than half": -content - pointer / 2,
    }


def estimate_over_random_groups(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(RandomInterchange)
    random = rows[rows["word"] == "pointed_object"]
    change = (random["after"] - random["before"]).groupby([random["draw"], random["prompt"]]).mean().mean()
    (changes,) = candidates(g).values()
    return {"": changes("B")["pointer"] - float(change)}


def estimate_order(g: Grounds) -> Mapping[str, float]:
    """What B and A do to the pointer target, and how often half of it is done by B's heads in an earlier layer."""
    rows = g.rows(Interchange, single_heads=True)
    halves = {group: layers_of_half(rows, group) for group in "BA"}
    before = np.mean([halves["B"][prompt] < halves["A"][prompt] for prompt in halves["B"]])
    return {f"{group} raises it": change(rows, group, "pointed_object") for group in "BA"} | {
        "B before A": float(before)
    }


def layers_of_half(rows: pd.DataFrame, group: str) -> dict[Any, float]:
    """By prompt the layer at which half of what single heads raise the pointer target by is reached."""
    heads = rows[(rows["group"] == group) & (rows["word"] == "pointed_object") & (rows["head"] >= 0)]
    halves: dict[Any, float] = {}
    for prompt, part in heads.groupby("prompt"):
        raised, layers = np.maximum(part["after"] - part["before"], 0.0), sorted(set(part["layer"]))
        sums = [raised[part["layer"] <= layer].sum() for layer in layers]
        halves[prompt] = next(layer for layer, value in zip(layers, sums, strict=True) if value >= sums[-1] / 2)
        halves[prompt] = halves[prompt] if sums[-1] > 0 else np.nan
    return halves


def weaker(changes: Changes) -> Mapping[str, float]:
    change = {group: changes(group)["pointer"] for group in "ABC"}
    return {group: change[group] for group in "AC"} | {f"B over {group}": change["B"] - change[group] for group in "AC"}


def carries(changes: Changes) -> Mapping[str, float]:
    a, b = changes("A"), changes("B")
    content = a["content"]
    return {"content up": content, "content up by more than B's": content - b["content"], "pointer down": -a["pointer"]}


ROWS: Mapping[str, Estimates] = {
    "circuit.a_attends_to_object": looks,
    "circuit.b_attends_to_question_box": looks_at_box,
    "circuit.c_attends_to_earlier_box": looks,
    "circuit.d_shapes_c": shapes,
    "roles.b_is_the_pointer": estimate_candidates(is_pointer),
    "roles.b_raises_pointer": estimate_candidates(raises),
    "roles.b_over_random_groups": estimate_over_random_groups,
    "beyond.pointer_then_payload": estimate_order,
    "roles.a_and_c_weaker": estimate_candidates(weaker),
    "roles.a_lowers_content": estimate_candidates(lambda changes: {"": -changes("A")["content"]}),
    "roles.a_carries_content": estimate_candidates(carries),
    "roles.llama3b_exception": estimate_candidates(raises_not),
    "roles.b_moves_pointer": estimate_candidates(lambda changes: {"pointer": changes("B")["pointer"]}),
    "roles.b_leaves_content": estimate_candidates(lambda changes: {"content": changes("B")["content"]}),
    "roles.a_on_g9": estimate_candidates(lambda changes: changes("A")),
}
