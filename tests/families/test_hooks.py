"""The reference is the library's model: without edits it gives the library's numbers, and its sites follow from each
other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rebinding.surgery.sites import Read
from tests.close import allowance
from tests.families.attention import norm_values, rotate
from tests.families.batches import read_all
from tests.families.hooks import Forward, _run, run_with_hooks
from tests.families.models import EVERYDAY, LENGTH, N_HEADS, RandomModel, reference_model
from tests.families.tables import TABLES


@pytest.mark.parametrize("model", EVERYDAY, ids=str)
def test_without_edits_the_numbers_are_the_librarys(model: RandomModel) -> None:
    """Residual, patterns and logits, from the library's own outputs."""
    table = TABLES[model.family]
    with torch.no_grad():
        own = reference_model(model)(
            input_ids=model.prompts, use_cache=False, output_attentions=True, output_hidden_states=True
        )
    with_heads = table.layers_with("pattern")
    reads = [
        *(Read("resid", at=range(LENGTH), layer=layer) for layer in range(len(table.layers))),
        *(read_all(table, "pattern", layer) for layer in with_heads),
        Read("logits", at=range(LENGTH)),
    ]
    patterns = [pattern for pattern in own.attentions if pattern is not None]
    residuals = [torch.cat(list(value), -1) if table.streams > 1 else value for value in own.hidden_states[:-1]]
    expected = [*residuals[: len(table.layers)], *patterns, own.logits]
    actual = run_with_hooks(reference_model(model), model.family, model.prompts, [], reads)
    for value, truth in zip(actual, expected, strict=True):
        assert value.shape == truth.shape
        assert (value - truth).abs().max() <= allowance(truth) / 10


@pytest.mark.parametrize("model", EVERYDAY, ids=str)
def test_raw_sites_lead_to_those_inside_attention(model: RandomModel) -> None:
    """Norm and RoPE of the table's queries and keys, the norm of its values: what attention gets."""
    table = TABLES[model.family]
    seen: set[tuple[str, int]] = set()

    class Watch(Forward):
        def at(self, site: str, layer: int, value: Tensor) -> Tensor:
            if site in ("q_rot", "k_rot", "v_seen"):
                letter, source = site[0], table.source_of(site[0], layer)
                module, raw = self.modules[source], self.raw[letter, source]
                raw = raw.repeat_interleave(N_HEADS // raw.shape[1], dim=1)  # (row, head, token, head_dim)
                truth = norm_values(module, raw) if letter == "v" else rotate(module, raw, self.positions, letter)
                torch.testing.assert_close(value, truth, rtol=1e-5, atol=1e-5)
                seen.add((letter, layer))
            return super().at(site, layer, value)

    with torch.no_grad():
        _run(reference_model(model), model.prompts, Watch(table, [], []))
    assert seen == {(site, layer) for site in "qkv" for layer in table.layers_with(site)}
