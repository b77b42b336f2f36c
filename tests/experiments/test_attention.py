"""What heads look at: names of tokens, what is refused, and means over heads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rebinding.experiments.attention import by_token, even, measure_heads, names_before
from rebinding.task.boxes import Contains, Story, Swap
from rebinding.task.prompts import Encoded, Encoder, PromptError
from rebinding.task.text import Prompt
from tests.close import allowance
from tests.experiments.binding.setup import planted


def swapped(encoder: Encoder, n: int = 22) -> list[Encoded]:
    """Counterbalanced prompts that ask about a swapped box, more than a block of them."""
    prompts = planted("pointer", "llama").prompts("counterbalanced", 2 * n)
    return [encoded for encoded in encoder.encode(item.prompt for item in prompts) if "swap_asked" in encoded.roles][:n]


def test_tokens_are_named_by_function() -> None:
    """Every earlier token with a role once; the same names whatever slots and order a prompt has."""
    for encoded in swapped(planted("pointer", "llama").encoder):
        names = names_before(encoded, "readout")
        assert set(names.values()) == {at for at in encoded.roles.values() if at < encoded.roles["readout"]}
        assert set(names) == {
            "context_asked", "context_asked_object", "context_partner", "context_partner_object", "context_box",
            "context_object", "swap_asked", "swap_partner", "swap_period", "question_box",
        }  # fmt: skip
        assert all(encoded.roles[name] == at for name, at in names.items() if name in encoded.roles)
        assert set(names) - set(names_before(encoded, "question_box")) == {"question_box"}


def test_prompts_that_differ_in_their_roles_are_refused() -> None:
    bench = planted("pointer", "llama")
    first, second = swapped(bench.encoder, 2)
    lacking = replace(second, roles={name: at for name, at in second.roles.items() if name != "swap_period"})
    with pytest.raises(PromptError, match="prompt 1 has other roles than prompt 0"):
        measure_heads(bench.surgeon, [first, lacking], [0, 1], bench.groups["A"], "readout")
    contents = tuple(Contains(box, object) for box, object in zip("ABCD", ("egg", "fan", "boot", "shell"), strict=True))
    (wide,) = bench.encoder.encode([Prompt(Story(contents, (Swap("A", "B"),)), "B")])
    with pytest.raises(PromptError, match="would have one name"):
        names_before(wide, "readout")


def test_means_are_over_heads_and_by_prompt() -> None:
    bench = planted("pointer", "llama")
    prompts = swapped(bench.encoder, 3)
    evidence = measure_heads(bench.surgeon, prompts, [5, 9, 7], bench.groups["A"], "readout")
    copy, echo = (evidence.rows[evidence.rows["head"] == head] for _, head in bench.groups["A"])
    for name, mean in by_token(evidence).items():
        halves = [table[table["token"] == name].sort_values("prompt")["attention"].to_numpy() for table in (copy, echo)]
        assert mean == pytest.approx(sum(halves) / 2, abs=allowance(1.0))
    assert even(evidence) == pytest.approx([1 / (prompts[0].roles["readout"] + 1)] * 3)
