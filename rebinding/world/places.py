"""A name for every token of a prompt: its role, or its word and how far it stands from a role.

`contains@context_box[1]+1` is the word after the label of the second statement, `.@context_object[0]+1` the full stop
that ends the first. The role is the nearest one of the same sentence. The same token also has a name by function where
its role has one: `contains@context_asked+1` in a prompt that asks about that box.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

FUNCTIONS = (
    "context_asked",
    "context_partner",
    "context_asked_object",
    "context_partner_object",
    "swap_asked",
    "swap_partner",
)
"""Roles that say what a token does in a prompt. Every other role says where it stands."""
ANSWER = "context_answer_object"
"""A further name of one of them, which no token is called by here."""
PATTERN = re.compile(r"(?P<word>.+)@(?P<role>[a-z_]+(\[\d+\])?)(?P<offset>[+-]\d+)")


def token_at(name: str, roles: Mapping[str, int]) -> int | None:
    """Where the token of a name stands in a prompt with these roles; None if the prompt lacks its role."""
    if name in roles:
        return roles[name]
    found = PATTERN.fullmatch(name)
    if found is None or found["role"] not in roles:
        return None
    return roles[found["role"]] + int(found["offset"])


def by_place(roles: Mapping[str, int], pieces: Sequence[str]) -> list[str]:
    """The name of every token by its place; the same in all prompts that are written alike."""
    places = {at: role for role, at in roles.items() if role not in (*FUNCTIONS, ANSWER)}
    sentence = [sum("." in piece for piece in pieces[:at]) for at in range(len(pieces))]  # ends with its full stop
    return [places.get(at) or _beside(at, places, sentence, pieces) for at in range(len(pieces))]


def by_function(roles: Mapping[str, int], names: Sequence[str]) -> list[str | None]:
    """The name of every token by what it does, or None; `names` are those by place."""
    doing = {at: role for role, at in roles.items() if role in FUNCTIONS}
    functions = {role: doing[at] for role, at in roles.items() if role not in (*FUNCTIONS, ANSWER) and at in doing}
    return [_renamed(name, functions) for name in names]


def word(piece: str) -> str:
    """A token's text without what tokenizers write for blanks."""
    return piece.strip("Ġ▁ \n").replace("Ċ", "newline") or "blank"


def _beside(at: int, places: Mapping[int, str], sentence: Sequence[int], pieces: Sequence[str]) -> str:
    same = [place for place in places if sentence[place] == sentence[at]]
    near = min(same or places, key=lambda place: (abs(at - place), place))
    return f"{word(pieces[at])}@{places[near]}{at - near:+d}"


def _renamed(name: str, functions: Mapping[str, str]) -> str | None:
    if name in functions:
        return functions[name]
    found = PATTERN.fullmatch(name)
    if found is None or found["role"] not in functions or int(found["offset"]) not in _around(found["role"]):
        return None
    return f"{found['word']}@{functions[found['role']]}{found['offset']}"


def _around(role: str) -> tuple[int, ...]:
    """The neighbours that stand alike beside every role of a kind: what follows a label depends on which label it is in
    a swap, but not in the context."""
    return (-1,) if role.startswith("swap") else (-1, 1)
