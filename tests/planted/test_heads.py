"""Every head does what its line says, also beside those of the mechanism, and nothing else matters."""

from __future__ import annotations

import pytest
import torch

from rebinding.experiments.attention import measure_heads
from rebinding.planted import ARCHITECTURES, MECHANISMS
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.designs import DesignName, design
from rebinding.task.prompts import Encoded, Encoder
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


def swapped() -> list[Encoded]:
    """Prompts that ask about a box of the swap, named first or last."""
    return [prompt for prompt in encoded("counterbalanced", 24) if "swap_asked" in prompt.roles]


def narrated(count: int) -> list[Encoded]:
    """Prompts in which a narrator speaks around the statements."""
    stories = design("counterbalanced", narrative=True)
    return Encoder(plant("pointer").tokenizer).encode(stories.prompt(number) for number in range(count))


def test_a_reminded_question_looks_at_its_own_box_in_the_swap() -> None:
    """The further head finds the box's label in the swap, wherever it is named there; the answers stay."""
    loaded_model, prompts = plant("pointer+reminded"), swapped()
    assert margins(loaded_model, prompts).min() > 1.0
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    rows = measure_heads(surgeon, prompts, range(len(prompts)), [loaded_model.heads["mention"]], "question_box").rows
    assert rows[rows["token"] == "swap_asked"]["attention"].min() > 0.9


def test_a_backup_answers_without_the_circuit() -> None:
    """Without either chain the other one still answers, and without both nothing does."""
    loaded_model, prompts = plant("pointer+backup"), swapped()
    own_tokens = [
        (head.layer, head.head) for head in loaded_model.circuit if head.group != "E"
    ]  # E is what both chains rest on
    spare = [head for line, head in loaded_model.heads.items() if line.endswith(" again")]
    assert margins(loaded_model, prompts, own_tokens).min() > 1.0
    assert margins(loaded_model, prompts, spare).min() > 1.0
    assert margins(loaded_model, prompts, [*own_tokens, *spare]).max() < 0.1


def test_the_swap_is_read_again_for_its_partner() -> None:
    """A head of B finds the label whose box holds the answer in the context, wherever it is named in the swap."""
    loaded_model, prompts = plant("pointer+swap_reader"), swapped()
    assert margins(loaded_model, prompts).min() > 1.0
    head = loaded_model.heads["reread"]
    assert head in {(declared.layer, declared.head) for declared in loaded_model.circuit if declared.group == "B"}
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    rows = measure_heads(surgeon, prompts, range(len(prompts)), [head], "readout").rows
    assert rows[rows["token"] == "swap_partner"]["attention"].min() > 0.9


def test_a_faint_match_has_a_hundred_thousandth_of_the_attention() -> None:
    loaded_model, prompts = plant("pointer+faint"), swapped()
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    rows = measure_heads(surgeon, prompts, range(len(prompts)), [loaded_model.heads["faint"]], "readout").rows
    values = rows[rows["token"] == "context_partner_object"]["attention"]
    assert 1e-6 < values.min() <= values.max() < 1e-4


@pytest.mark.parametrize(
    ("name", "follows"), [("pointer", False), ("pointer+ordinal", True), ("pointer+by_place", True)]
)
def test_narrator_heads_follow_the_narrator(name: str, follows: bool) -> None:
    values = margins(plant(name), narrated(9))
    assert bool(values.min() > 1.0) == follows
    assert follows or (values > 0).float().mean() < 0.7
