"""What the rows about attention and about the roles of groups weigh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import pandas as pd

from rebinding.experiments.attention.request import AttentionToRoles
from rebinding.experiments.roles.request import Interchange, RandomInterchange
from tests.oracles.by_hand.binding_estimates import Estimates
from tests.oracles.by_hand.grounds import Grounds

MEASURED = {"pointer": ("pointer", "pointed_object"), "content": ("content_control", "new_object")}


def looks(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(AttentionToRoles)
    at = ["context_partner_object"] if ".a_" in g.claim.id else ["swap_asked", "swap_partner", "context_partner"]
    by_token, uniform = rows.groupby("token")["attention"].mean(), rows.groupby("prompt")["uniform"].first().mean()
    others = dict(by_token) | {"an even share": uniform}
    over = {own: {name: by_token[own] - less for name, less in others.items() if name != own} for own in at}
    parts = {f"{own} over {name}": less for own, found in over.items() for name, less in found.items()}
    return parts | {f"{part.partition(' ')[0]}: {part}": less for part, less in parts.items()}


def looks_at_box(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(AttentionToRoles)
    box, even = rows[rows["token"] == "question_box"], rows.groupby("prompt")["uniform"].first()
    return {"": float(box["attention"].mean() - even.mean())}


def change(rows: pd.DataFrame, group: str, word: str) -> float:
    """What a group's patch does to a word, mean over an id's pairs and then over ids."""
    mine = rows[(rows["group"] == group) & (rows["word"] == word) & (rows["head"] < 0)]
    return float((mine["after"] - mine["before"]).groupby(mine["prompt"]).mean().mean())


Changes: TypeAlias = Callable[[str], Mapping[str, float]]
"""From a group to what its patch does, by target."""


def candidates(g: Grounds) -> Mapping[str, Changes]:
    """The row's own conventions, and the text's where the paper may have had these; by name, if there are two."""
    requests = {(one.mode, one.direction): None for one, _ in g.all(Interchange)}
    named = len(requests) > 1
    return {
        f"{mode} places, {direction} direction" if named else "": partial(changes, g, mode, direction)
        for mode, direction in requests
    }


def changes(g: Grounds, mode: str, direction: str, group: str) -> Mapping[str, float]:
    """By target, under some conventions."""
    found = {}
    for target, (pairs, word) in MEASURED.items():
        for _, rows in g.all(Interchange, counterfactual=pairs, mode=mode, direction=direction):
            found[target] = change(rows, group, word)
    return found


def in_candidates(parts: Callable[[Changes], Mapping[str, float]]) -> Estimates:
    """The parts of a sentence under every convention."""

    def estimates(g: Grounds) -> Mapping[str, float]:
        return {joined(name, part): value for name, of in candidates(g).items() for part, value in parts(of).items()}

    return estimates


def joined(name: str, part: str) -> str:
    """The name of a part under a convention; `@0` is a place, and no name."""
    return f"{name}{part}" if not name or not part or part.startswith("@") else f"{name}: {part}"


def is_pointer(of: Changes) -> Mapping[str, float]:
    b = of("B")["pointer"]
    return {f"B over {group}": b - of(group)["pointer"] for group in "ACD"}


def raises(of: Changes) -> Mapping[str, float]:
    up, content = of("B")["pointer"], of("B")["content"]
    return {"pointer up": up, "content up by less": up - content, "content down by less": up + content}


def small(of: Changes) -> Mapping[str, float]:
    half, content = of("B")["pointer"] / 2, of("B")["content"]
    return {"content up by less than half": half - content, "content down by less than half": half + content}


def over_random_groups(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(RandomInterchange)
    random = rows[rows["word"] == "pointed_object"]
    moved = (random["after"] - random["before"]).groupby([random["draw"], random["prompt"]]).mean().mean()
    (of,) = candidates(g).values()
    return {"": of("B")["pointer"] - float(moved)}


def weaker(of: Changes) -> Mapping[str, float]:
    moved = {group: of(group)["pointer"] for group in "ABC"}
    return {group: moved[group] for group in "AC"} | {f"B over {one}": moved["B"] - moved[one] for one in "AC"}


def carries(of: Changes) -> Mapping[str, float]:
    a, b = of("A"), of("B")
    content = a["content"]
    return {"content up": content, "content up by more than B's": content - b["content"], "pointer down": -a["pointer"]}


ROWS: Mapping[str, Estimates] = {
    "circuit.a_attends_to_object": looks,
    "circuit.b_attends_to_question_box": looks_at_box,
    "circuit.c_attends_to_earlier_box": looks,
    "roles.b_is_the_pointer": in_candidates(is_pointer),
    "roles.b_raises_pointer": in_candidates(raises),
    "roles.b_small_on_content": in_candidates(small),
    "roles.b_over_random_groups": over_random_groups,
    "roles.a_and_c_weaker": in_candidates(weaker),
    "roles.a_lowers_content": in_candidates(lambda of: {"": -of("A")["content"]}),
    "roles.a_carries_content": in_candidates(carries),
    "roles.llama3b_exception": in_candidates(lambda of: {"@0": of("B")["pointer"]}),
    "roles.b_moves_pointer": in_candidates(lambda of: {"pointer": of("B")["pointer"]}),
    "roles.b_leaves_content": in_candidates(lambda of: {"content": of("B")["content"]}),
    "roles.a_on_g9": in_candidates(lambda of: of("A")),
}
