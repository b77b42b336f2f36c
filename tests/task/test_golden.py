"""Ids are stable names: a prompt once drawn is drawn for good, on every machine and Python version."""

from __future__ import annotations

from dataclasses import replace

from rebinding.task.designs import design

from .golden import digest, load, names


def test_every_golden_prompt_is_what_it_was() -> None:
    now = {name: digest(prompt) for name, prompt in names()}
    golden = load()
    changed = sorted(name for name in golden if now.get(name) != golden[name])
    assert not changed, f"{len(changed)} of {len(golden)} prompts changed under their old names, first {changed[:5]}"
    assert set(now) == set(golden), "new names: add them with python -m tests.task.golden"


def test_a_hash_tells_any_word_of_a_prompt() -> None:
    prompt = design().prompt(0)
    prompts = [replace(prompt, question="K"), design().prompt(1), design("partner_second").prompt(0)]
    assert digest(prompt) not in {digest(different) for different in prompts}
