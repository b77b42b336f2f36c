"""Names of tokens that heads attend to."""

from __future__ import annotations

from rebinding.task.prompts import Encoded, PromptError
from rebinding.task.text import FUNCTIONS


def names_before(prompt: Encoded, role: str) -> dict[str, int]:
    """Every token with a role before that of `role`, by name."""
    end = prompt.roles[role]
    by_function = {name: prompt.roles[name] for name in FUNCTIONS if name in prompt.roles}
    places = {name: at for name, at in prompt.roles.items() if at not in by_function.values()}
    by_place = {name.partition("[")[0]: at for name, at in places.items()}
    if len(by_place) < len(places):
        story = prompt.prompt.story
        raise PromptError(f"several tokens of {story} would have one name; ask where at most one box stands aside")
    return {name: at for name, at in sorted({**by_place, **by_function}.items()) if at < end}
