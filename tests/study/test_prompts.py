"""Prompts: a block of a request is the request on some of its prompts; every machine draws the same ones; each is
encoded once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rebinding.evidence import OnPrompts, PromptSet
from rebinding.experiments.paths.request import STAGE_BY_NAME, Paths, conventions_of_plant, request_paths
from rebinding.experiments.prompts import Pairing, Stories, draw_noise_pairs
from rebinding.experiments.tokens import BLOCK
from rebinding.experiments.tracing.request import Answered
from rebinding.experiments.unedited import request_ability
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.designs import Design
from rebinding.task.prompts import Encoder, Prompt

N = 45
"""Two whole blocks of section 3, and a part of one."""
PAIRINGS: dict[str, tuple[Pairing, int]] = {
    "prompts": ((), 0),
    "two tokens short": ((), 2),
    "pairs": (("noise", "independent"), 0),
    "two pairs an id": (("pointer", "both"), 0),
    "three questions an id": (("questions", "swap_target_box_to_remaining_context_box"), 0),
}
"""A pairing, and how many tokens are left away."""


@pytest.fixture
def prompts() -> Stories:
    return Stories(Encoder(build_tokenizer()))


def story(prompts: Stories) -> Design:
    return prompts.design("published", split="test")


def paths(prompts: Stories, n: int = N) -> Paths:
    """Stage B of path patching."""
    conventions = conventions_of_plant(builtin_procedure("controlled").circuit, "controlled")
    heads = Circuit(build("pointer").circuit).group("A")
    return request_paths(draw_noise_pairs(prompts, conventions, n), STAGE_BY_NAME["B"], heads, conventions)


def answered(prompt_set: PromptSet) -> OnPrompts:
    """A request in blocks, on any prompts."""
    return Answered(prompt_set, "continuation")


def split_request(prompts: Stories, request: OnPrompts) -> list[OnPrompts]:
    """The blocks of a request on prompts."""
    blocks = prompts.blocks(request)
    assert all(isinstance(block, OnPrompts) for block in blocks)
    return [block for block in blocks if isinstance(block, OnPrompts)]


@pytest.mark.parametrize("name", PAIRINGS)
def test_a_block_is_the_request_on_some_of_its_prompts(name: str, prompts: Stories) -> None:
    """It has the key that the same request has when nothing but these prompts was drawn, on another machine."""
    pairing, cut = PAIRINGS[name]
    request = answered(prompts.draw(story(prompts), range(300, 300 + N), pairing, cut))
    for block in split_request(prompts, request):
        fresh = Stories(Encoder(build_tokenizer()))
        part = fresh.draw(story(fresh), block.prompts.ids, pairing, cut)
        assert replace(request, prompts=part) == block
        assert replace(request, prompts=part).key == block.key != request.key


@pytest.mark.parametrize("name", PAIRINGS)
def test_blocks_share_out_the_prompts_in_their_order(name: str, prompts: Stories) -> None:
    """Ids, prompts and counterfactuals, also where an id has several pairs."""
    pairing, cut = PAIRINGS[name]
    request = answered(prompts.draw(story(prompts), range(300, 300 + N), pairing, cut))
    blocks = [block.prompts for block in split_request(prompts, request)]
    assert [len(block.ids) for block in blocks] == [BLOCK, BLOCK, 5]
    full, parts = prompts.encode(request.prompts), [prompts.encode(block) for block in blocks]
    assert sum((block.ids for block in blocks), ()) == request.prompts.ids
    assert sum((part.prompts for part in parts), ()) == full.prompts
    assert sum((part.counterfactuals for part in parts), ()) == full.counterfactuals
    assert sum((part.items for part in parts), ()) == full.items
    assert len({block.tokens for block in blocks}) == len(blocks)


def test_path_patching_is_in_blocks_of_its_settings(prompts: Stories) -> None:
    request = paths(prompts)
    assert [block.prompts.ids for block in split_request(prompts, request)] == [
        request.prompts.ids[:16], request.prompts.ids[16:32], request.prompts.ids[32:],
    ]  # fmt: skip
    large = replace(request, settings=replace(request.settings, block=30))
    assert [len(block.prompts.ids) for block in split_request(prompts, large)] == [30, 15]
    for whole in (paths(prompts, 16), request_ability(prompts, story(prompts), N)):
        assert prompts.blocks(whole) == [whole]
    for size in (0, -1):
        with pytest.raises(ValueError, match=f"blocks of {size} prompts; give at least one"):
            prompts.blocks(replace(request, settings=replace(request.settings, block=size)))


@pytest.mark.parametrize("name", PAIRINGS)
def test_another_machine_draws_equal_prompts(name: str, prompts: Stories) -> None:
    """From the design, and from the request alone."""
    pairing, cut = PAIRINGS[name]
    prompt_set = prompts.draw(story(prompts), range(300, 306), pairing, cut)
    by_design, by_request = (Stories(Encoder(build_tokenizer())) for _ in range(2))
    assert by_design.draw(story(by_design), range(300, 306), pairing, cut) == prompt_set
    expected, actual = prompts.encode(prompt_set), by_request.encode(prompt_set)
    assert (actual.request, actual.items, actual.contents) == (expected.request, expected.items, expected.contents)
    assert [prompt.ids for prompt in actual.prompts + actual.counterfactuals] == [
        prompt.ids for prompt in expected.prompts + expected.counterfactuals
    ]
    block = split_request(prompts, answered(prompts.draw(story(prompts), range(300, 300 + N), pairing, cut)))[1].prompts
    assert by_request.encode(block).contents == prompts.encode(block).contents


def test_each_prompt_is_encoded_once(prompts: Stories, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests, pairings and blocks it is in; only with another end it is another prompt."""
    counts: Counter[tuple[Prompt, int]] = Counter()
    encode = Encoder._encode_chunk

    def counting(self: Encoder, chunk: Sequence[Prompt], cut: int) -> Any:
        counts.update((prompt, cut) for prompt in chunk)
        return encode(self, chunk, cut)

    monkeypatch.setattr(Encoder, "_encode_chunk", counting)
    for _ in range(2):
        for pairing, cut in PAIRINGS.values():
            request = answered(prompts.draw(story(prompts), range(300, 300 + N), pairing, cut))
            for block in split_request(prompts, request):
                prompts.encode(block.prompts)
        prompts.draw(story(prompts), range(310, 320))
    assert sum(cut == 0 for _, cut in counts) > 2 * N
    assert sum(cut == 2 for _, cut in counts) == N
    assert set(counts.values()) == {1}
