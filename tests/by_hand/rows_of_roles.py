"""What the rows about attention and about the roles of groups weigh."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from rebinding.experiments.attention.looks import Looks
from rebinding.experiments.roles.request import Interchange
from tests.by_hand.grounds import Grounds
from tests.by_hand.rows_of_binding import Estimates

MEASURED = {"pointer": ("pointer", "pointed_object"), "content": ("content_control", "new_object")}


def looks(g: Grounds) -> Mapping[str, float]:
    rows = g.rows(Looks)
    at = ["context_partner_object"] if ".a_" in g.claim.id else ["swap_asked", "swap_partner", "context_partner"]
    by_token, uniform = rows.groupby("token")["attention"].mean(), rows.groupby("prompt")["uniform"].first().mean()
    others = dict(by_token) | {"an even share": uniform}
    over = {own: {name: by_token[own] - less for name, less in others.items() if name != own} for own in at}
    parts = {f"{own} over {name}": less for own, found in over.items() for name, less in found.items()}
    return parts | {f"{part.partition(' ')[0]}: {part}": less for part, less in parts.items()}


def change(rows: pd.DataFrame, group: str, word: str) -> float:
    """What a group's patch does to a word, mean over an id's pairs and then over ids."""
    mine = rows[(rows["group"] == group) & (rows["word"] == word) & (rows["head"] < 0)]
    return float((mine["after"] - mine["before"]).groupby(mine["prompt"]).mean().mean())


def changes(g: Grounds, group: str) -> dict[str, float]:
    """By target, under the row's own conventions."""
    told = {"mode": g.way.roles.places, "direction": g.way.roles.direction}
    found = {}
    for target, (pairs, word) in MEASURED.items():
        for _, rows in g.all(Interchange, counterfactual=pairs, **told):
            found[target] = change(rows, group, word)
    return found


def is_pointer(g: Grounds) -> Mapping[str, float]:
    b = changes(g, "B")["pointer"]
    return {f"B over {group}": b - changes(g, group)["pointer"] for group in "ACD"}


def raises(g: Grounds) -> Mapping[str, float]:
    b = changes(g, "B")
    up, content = b["pointer"], b["content"]
    return {"pointer up": up, "content up by less": up - content, "content down by less": up + content}


def small(g: Grounds) -> Mapping[str, float]:
    half, content = changes(g, "B")["pointer"] / 2, changes(g, "B")["content"]
    return {"content up by less than half": half - content, "content down by less than half": half + content}


def weaker(g: Grounds) -> Mapping[str, float]:
    moved = {group: changes(g, group)["pointer"] for group in "ABC"}
    return {group: moved[group] for group in "AC"} | {f"B over {one}": moved["B"] - moved[one] for one in "AC"}


def carries(g: Grounds) -> Mapping[str, float]:
    a, b = changes(g, "A"), changes(g, "B")
    content = a["content"]
    return {"content up": content, "content up by more than B's": content - b["content"], "pointer down": -a["pointer"]}


def printed(g: Grounds) -> Mapping[str, float]:
    """Held against a printed number under every convention that it may be a number of."""
    target = "pointer" if g.claim.id.endswith("pointer") else "content"
    pairs, word = MEASURED[target]
    return {
        f"{request.mode} places, {request.direction} direction": change(rows, "B", word)
        for request, rows in g.all(Interchange, counterfactual=pairs)
    }


ROWS: Mapping[str, Estimates] = {
    "circuit.a_attends_to_object": looks,
    "circuit.c_attends_to_earlier_box": looks,
    "roles.b_is_the_pointer": is_pointer,
    "roles.b_raises_pointer": raises,
    "roles.b_small_on_content": small,
    "roles.a_and_c_weaker": weaker,
    "roles.a_lowers_content": lambda g: {"": -changes(g, "A")["content"]},
    "roles.a_carries_content": carries,
    "roles.llama3b_exception": lambda g: {"@0": changes(g, "B")["pointer"]},
    "roles.b_moves_pointer": printed,
    "roles.b_leaves_content": printed,
}
