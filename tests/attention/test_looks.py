"""What heads look at: against a model's own attention weights, on both surgeons, and by the names of tokens."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch

from rebinding.experiments.attention.looks import look, names_before
from rebinding.experiments.attention.summary import by_token, even
from rebinding.world.boxes import Contains, Story, Swap
from rebinding.world.prompts import Encoded, Encoder, PromptError
from rebinding.world.text import Prompt
from tests.binding.setup import planted, random_model
from tests.close import allowance
from tests.surgery.models import Family, tiny

HEADS = ((1, 0), (1, 3), (2, 5))
WHERE = ("question_box", "readout")


def swapped(encoder: Encoder, n: int = 22) -> list[Encoded]:
    """Counterbalanced prompts that ask about a swapped box, more than a block of them."""
    shown = planted("pointer", "llama").prompts("counterbalanced", 2 * n)
    return [one for one in encoder.encode(each.prompt for each in shown) if "swap_asked" in one.roles][:n]


@pytest.mark.parametrize("at", WHERE)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_equals_the_weights_that_the_library_returns(family: Family, at: str) -> None:
    """One full forward a prompt through a model of its own on the library's eager attention, and nothing of ours."""
    bench = random_model(family)
    prompts = swapped(bench.encoder)
    rows = look(bench.surgeon, prompts, range(len(prompts)), HEADS, at).rows
    windows = {} if family == "llama" else {"sliding_window": 60}
    model = tiny(family, vocab_size=len(bench.tokenizer), max_position_embeddings=256, **windows)
    table = rows.set_index(["prompt", "layer", "head", "token"])["attention"]
    for number, one in enumerate(prompts):
        with torch.no_grad():
            weights = model(torch.tensor([one.ids]), output_attentions=True, use_cache=False).attentions
        for layer, head in HEADS:
            row = weights[layer][0, head, one.roles[at]]  # (key,)
            for name, place in names_before(one, at).items():
                assert abs(table[number, layer, head, name] - float(row[place])) <= allowance(1.0)
    assert rows["attention"].std() > 100 * allowance(1.0)  # equal numbers would agree with anything


def test_both_surgeons_give_the_same_table() -> None:
    ours, theirs = (
        look(bench.surgeon, swapped(bench.encoder, 4), range(4), HEADS, "readout")
        for bench in (random_model("gemma2"), random_model("gemma2", oracle=True))
    )
    pd.testing.assert_frame_equal(ours.rows, theirs.rows, check_exact=False, rtol=0, atol=allowance(1.0))


def test_tokens_are_called_by_what_they_do() -> None:
    """Every earlier token with a role once; the same names whatever slots and order a prompt has."""
    for one in swapped(planted("pointer", "llama").encoder):
        names = names_before(one, "readout")
        assert set(names.values()) == {at for at in one.roles.values() if at < one.roles["readout"]}
        assert set(names) == {
            "context_asked", "context_asked_object", "context_partner", "context_partner_object", "context_box",
            "context_object", "swap_asked", "swap_partner", "swap_period", "question_box",
        }  # fmt: skip
        assert all(one.roles[name] == at for name, at in names.items() if name in one.roles)
        assert set(names) - set(names_before(one, "question_box")) == {"question_box"}


def test_prompts_that_differ_in_their_roles_are_refused() -> None:
    bench = planted("pointer", "llama")
    first, second = swapped(bench.encoder, 2)
    lacking = replace(second, roles={name: at for name, at in second.roles.items() if name != "swap_period"})
    with pytest.raises(PromptError, match="prompt 1 has other roles than prompt 0"):
        look(bench.surgeon, [first, lacking], [0, 1], HEADS, "readout")
    contents = tuple(Contains(box, thing) for box, thing in zip("ABCD", ("egg", "fan", "boot", "shell"), strict=True))
    (wide,) = bench.encoder.encode([Prompt(Story(contents, (Swap("A", "B"),)), "B")])
    with pytest.raises(PromptError, match="would have one name"):
        names_before(wide, "readout")


def test_means_are_over_heads_and_by_prompt() -> None:
    bench = planted("pointer", "llama")
    prompts = swapped(bench.encoder, 3)
    evidence = look(bench.surgeon, prompts, [5, 9, 7], bench.groups["A"], "readout")
    copy, echo = (evidence.rows[evidence.rows["head"] == head] for _, head in bench.groups["A"])
    for name, found in by_token(evidence).items():
        halves = [one[one["token"] == name].sort_values("prompt")["attention"].to_numpy() for one in (copy, echo)]
        assert found == pytest.approx(sum(halves) / 2, abs=allowance(1.0))
    assert even(evidence) == pytest.approx([1 / (prompts[0].roles["readout"] + 1)] * 3)
