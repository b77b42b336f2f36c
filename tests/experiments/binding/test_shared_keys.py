"""A shift of a KV head's key: all query heads that read it get the mean of what is meant for the named ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rebinding.experiments.binding.conditions import TABLE
from rebinding.experiments.binding.directions import Directions, read_vectors
from rebinding.experiments.tokens import positions, token_batch
from rebinding.surgery import Read
from tests.close import MIN_CHANGE_SHARE, allowance
from tests.experiments.binding.setup import random_model

LAYER = 1


@pytest.mark.parametrize("shared", [0, 1])
def test_a_group_is_shifted_as_its_heads_would_be_one_by_one_by_their_mean(shared: int) -> None:
    """Two readers are named; the third reads the same key."""
    bench = random_model("gemma3")
    size = bench.surgeon.anatomy.parts[0].group
    readers = tuple((LAYER, shared * size + member) for member in range(size))
    directions = replace(bench, heads=readers).directions("published", 4)
    for_two = directions.of(readers[:2])
    mean = for_two.k.mean(2, keepdim=True).expand(-1, -1, size, -1)  # (kind, slot, head, head_dim)
    expected = Directions(readers, torch.zeros_like(directions.q), mean)
    keys = [condition for condition in TABLE if condition.name.startswith("k_")]
    as_group = replace(bench, heads=readers[:2]).binding("published", keys, n=2, scope="group", directions=for_two)
    by_head = replace(bench, heads=readers).binding("published", keys, n=2, scope="head", directions=expected)

    read = by_head.rows[by_head.rows["head"].isin([head for _, head in readers[:2]])].reset_index(drop=True)
    after = [name for name in read if name.startswith("after_")]
    close = allowance(read[after].to_numpy(), floor=1.0)  # attention is of size one, logits of a few
    assert abs(as_group.rows[after].to_numpy() - read[after].to_numpy()).max() <= close
    clean = read[[name.replace("after", "before") for name in after]].to_numpy()
    assert abs(read[after].to_numpy() - clean).max() > MIN_CHANGE_SHARE * close


def test_each_head_has_the_key_that_it_reads() -> None:
    """Of two keys in one layer, in an order in which heads of another layer stand between."""
    bench = random_model("llama")
    surgeon, prompts, heads = bench.surgeon, bench.prompts("published", 2), ((1, 4), (2, 1), (1, 0), (1, 3))
    assert [surgeon.anatomy.parts[1].kv_head(head) for layer, head in heads if layer == 1] == [1, 0, 1]
    label = positions(prompts, "context_box[0]")[:, None]
    _, keys = read_vectors(surgeon, prompts, label, heads)  # (prompt, head, token, head_dim)
    for place, (layer, head) in enumerate(heads):
        key_head = surgeon.anatomy.parts[layer].kv_head(head)
        read = Read("k", at=label, head=[(layer, key_head)], scope="group")
        (expected,) = surgeon.run(surgeon.record(token_batch(prompts)), [], [read])
        torch.testing.assert_close(keys[:, [place]], expected, rtol=0, atol=allowance(expected.numpy()))
