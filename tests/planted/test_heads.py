"""Every head does what its line says, and nothing else matters."""

from __future__ import annotations

import pytest
import torch

from rebinding.planted import ARCHITECTURES, MECHANISMS
from rebinding.task.designs import DesignName
from rebinding.task.prompts import Encoded
from tests.close import MIN_CHANGE_SHARE, allowance, is_changed
from tests.everyday import sampled
from tests.planted.runs import encoded, logits, margins, plant

LOOKS: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "other": [("swap_second", ("swap_first",))],
    "its slot": [("swap_second", ("context_partner",))],
    "other slot": [("swap_second", ("context_asked",))],
    "own": [("question_box", ("context_asked",))],
    "pair": [("question_box", ("swap_second",))],
    "fetch": [("readout", ("question_box",))],
    "match": [("readout", ("context_partner", "context_partner_object"))],
    "copy": [("readout", ("context_answer_object",))],
    "echo": [("readout", ("readout",))],
    **{f"anchor {k}": [(f"context_{kind}[{k}]", ("marker",)) for kind in ("box", "object")] for k in range(3)},
}
"""Where each head of `pointer` stands and looks, when the partner is named second."""
UNTOUCHED = 0.01
"""Logits, of 7. Decoys write what nobody reads; what is left is that norms shrink by what all of them write: 0.04 %."""


def _mass(pattern: torch.Tensor, prompt: Encoded, query: str, keys: tuple[str, ...], marker: int) -> float:
    places = {**prompt.roles, "marker": prompt.ids.index(marker)}
    return float(sum(pattern[places[query], places[key]] for key in keys))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("softness", "minimum"), [(0, 0.9), (0.75, 0.9), (1, 0.75)])
def test_attention_lands_where_planned(architecture: str, softness: float, minimum: float) -> None:
    loaded_model, prompts = plant(f"pointer@{architecture}?softness={softness}"), encoded("partner_second", 8)
    marker = loaded_model.tokenizer.convert_tokens_to_ids("Context")
    with torch.no_grad():
        ids = torch.tensor([prompt.ids for prompt in prompts])
        attention = loaded_model.model(ids, output_attentions=True, use_cache=False).attentions
    for name, expected in LOOKS.items():
        layer, head = loaded_model.heads[name]
        for query, keys in expected:
            patterns = attention[layer][:, head]  # (prompt, query, key)
            masses = [_mass(*pair, query, keys, marker) for pair in zip(patterns, prompts, strict=True)]
            assert sum(masses) / len(masses) > minimum, f"{name} at {query}: {masses}"
    assert set(LOOKS) == set(loaded_model.heads) - {"place"}


@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES))
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_decoys_can_go(mechanism: str, architecture: str) -> None:
    """All together, and one by one."""
    loaded_model, prompts = plant(f"{mechanism}@{architecture}"), encoded("counterbalanced", 6)
    plain = margins(loaded_model, prompts)
    assert len(loaded_model.decoys) > 10
    assert (margins(loaded_model, prompts, loaded_model.decoys) - plain).abs().max() < UNTOUCHED
    for decoy in loaded_model.decoys[::5]:
        assert (margins(loaded_model, prompts, [decoy]) - plain).abs().max() < UNTOUCHED, decoy


def test_decoys_are_no_dead_heads() -> None:
    """They do write: otherwise "exactly the planted heads" could not be false."""
    loaded_model, prompts = plant("pointer"), encoded("counterbalanced", 2)
    with_them, ablated = (logits(loaded_model, prompts, heads) for heads in ((), loaded_model.decoys))
    ids = torch.tensor([prompts[0].ids])
    attention = loaded_model.model(ids, output_attentions=True, use_cache=False).attentions
    spread = [float(attention[layer][0, head, -1].std()) for layer, head in loaded_model.decoys]
    assert min(spread) > MIN_CHANGE_SHARE * allowance(1.0), (
        "attention of the same size everywhere is that of a head that looks at nothing"
    )
    assert is_changed(with_them, ablated)


@pytest.mark.parametrize(("design", "idle_slot"), [("published", "its slot"), ("partner_second", "other slot")])
def test_each_head_is_needed_where_it_should_be(design: DesignName, idle_slot: str) -> None:
    """Silencing a head costs margin exactly where its line has something to carry.

    The asked box is in slot 0 here, and its slot is added by D and taken away by C: whoever adds it can stay silent.
    """
    loaded_model, prompts = plant("pointer"), encoded(design, 6)
    plain = margins(loaded_model, prompts)
    for name, head in loaded_model.heads.items():
        loss = plain - margins(loaded_model, prompts, [head])
        if name in {"anchor 0", "anchor 2", idle_slot}:  # slot 2 is the bystander's
            assert loss.abs().max() < 0.5, (name, loss)
        else:
            assert loss.min() > 1.0, (name, loss)


def test_swap_heads_are_idle_without_a_swap() -> None:
    """The same heads, and a question about a box that no swap names: only they are idle."""
    loaded_model = plant("pointer")
    bystanders = [prompt for prompt in encoded("counterbalanced", 36) if prompt.prompt.partner is None][:6]
    plain = margins(loaded_model, bystanders)
    for name in ("other", "its slot", "other slot", "own"):  # twice a slot, less itself or not, is that slot
        assert (plain - margins(loaded_model, bystanders, [loaded_model.heads[name]])).abs().max() < 0.5, name
    for name in ("pair", "copy"):
        assert (plain - margins(loaded_model, bystanders, [loaded_model.heads[name]])).min() > 1.0, name


@pytest.mark.parametrize("mechanism", sampled(MECHANISMS))
def test_architectures_agree(mechanism: str) -> None:
    """The same heads in the same places, the same answers, and the same effect of silencing any head."""
    prompts = encoded("counterbalanced", 6)
    llama, *gemmas = (plant(f"{mechanism}@{architecture}") for architecture in ARCHITECTURES)
    plain = margins(llama, prompts)
    effects = {name: plain - margins(llama, prompts, [head]) for name, head in llama.heads.items()}
    for gemma in gemmas:
        assert gemma.heads == llama.heads
        clean = margins(gemma, prompts)
        # Gemma 2 caps scores at 50 and logits at 30: at a logit of 8 the cap takes 0.2, the scores' caps half of that.
        assert (clean - plain).abs().max() < 0.6
        for name, head in gemma.heads.items():
            effect = clean - margins(gemma, prompts, [head])
            clear = effects[name].abs() > 1.0
            assert torch.equal(effect[clear].sign(), effects[name][clear].sign()), (gemma.architecture, name)


def test_global_never_looks_at_the_context_after_the_story() -> None:
    """No head of `global` that acts at the question or the readout puts attention on the context."""
    loaded_model, prompts = plant("global"), encoded("published", 4)
    ids = torch.tensor([prompt.ids for prompt in prompts])
    attention = loaded_model.model(ids, output_attentions=True, use_cache=False).attentions
    roles = prompts[0].roles
    late_layers, early_layers = (
        [roles["question_box"], roles["readout"]],
        slice(roles["context_box[0]"], roles["context_object[2]"] + 1),
    )
    for name, (layer, head) in loaded_model.heads.items():
        assert attention[layer][:, head, late_layers, early_layers].sum(-1).max() < 1e-3, name
