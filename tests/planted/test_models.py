"""Plants are ordinary models that solve the task, and the truth table has the numbers that they show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rebinding.cli.commands import main
from rebinding.planted import (
    ARCHITECTURES,
    MECHANISMS,
    VARIANTS,
    Specification,
    TemplateError,
    WiringError,
    build,
    parse,
)
from rebinding.planted.show import table
from rebinding.planted.truth import add_once, truth_of, whole_table
from rebinding.task.designs import design
from rebinding.task.prompts import Encoder, Prompt
from tests.close import agree
from tests.everyday import sampled
from tests.planted.accuracy import accuracy, conditions
from tests.planted.runs import encoded, logits, margins, plant

CLASSES = {"llama": "LlamaForCausalLM", "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_genuine_models_of_hostile_shape(architecture: str) -> None:
    loaded_model = plant(f"pointer@{architecture}")
    config = loaded_model.model.config
    assert type(loaded_model.model).__name__ == CLASSES[architecture]
    assert config.num_key_value_heads < config.num_attention_heads
    assert config.num_attention_heads * config.head_dim != config.hidden_size
    assert {parameter.dtype for parameter in loaded_model.model.parameters()} == {torch.float32}
    assert all(float(layer.mlp.down_proj.weight.abs().max()) > 0 for layer in loaded_model.model.model.layers)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_saved_and_loaded(architecture: str, tmp_path: Path) -> None:
    loaded_model, prompts = plant(f"pointer@{architecture}"), encoded("counterbalanced", 3)
    loaded_model.model.save_pretrained(tmp_path)
    loaded_model.tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert Encoder(tokenizer).encode([prompts[0].prompt])[0].ids == prompts[0].ids
    ids = torch.tensor([prompt.ids for prompt in prompts])
    with torch.no_grad():
        second = loaded(ids, use_cache=False, logits_to_keep=1).logits[:, -1]
    assert agree(second, logits(loaded_model, prompts))  # what is read from a file lies elsewhere in memory


def test_builds_are_reproducible_and_seeds_differ() -> None:
    first, second, reseeded = (build("pointer", seed=seed).model.state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], reseeded[name]) for name in first)
    assert build("pointer", seed=1).heads != build("pointer").heads


def test_fewer_decoys() -> None:
    assert len(build("pointer", decoys=3).decoys) == 3
    assert build("pointer", decoys=0).decoys == ()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_names_are_read_back(mechanism: str) -> None:
    for text in (mechanism, f"planted:{mechanism}@gemma3?boxes=5&softness=0.5&seed=2"):
        assert parse(parse(text).name) == parse(text)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("pointers", "no mechanism"),
        ("pointer@gpt2", "no architecture"),
        ("pointer?boxes=8", "3 to 7"),
        ("pointer?size=8", "no option"),
        ("pointer@gemma2@llama", "not of the form"),
        ("global+veto", "no variant"),
        ("pointer?softness=2", "from 0"),
    ],
)
def test_bad_names_say_what_there_is(text: str, word: str) -> None:
    with pytest.raises(WiringError, match=word):
        build(parse(text))


@pytest.mark.parametrize(
    ("boxes", "operations", "verb", "word"),
    [(5, 1, "swap", "up to 3"), (3, 1, "move", "swap sentences only"), (3, 2, "swap", "more than once")],
)
def test_prompts_of_another_kind_are_refused(boxes: int, operations: int, verb: str, word: str) -> None:
    from rebinding.task.designs import design

    loaded_model = plant("pointer")
    foreign = design("published", boxes=boxes, operations=operations, verb=verb)  # type: ignore[arg-type]  # a table's text
    (prompt,) = Encoder(loaded_model.tokenizer).encode([foreign.prompt(0)])
    with pytest.raises(TemplateError, match=word):
        loaded_model.check_prompt(prompt)


LEAST_MARGIN = 1.0
"""Logits. A right answer by less could be luck: the plants are made for 7 (`global`, softer by its length: 4)."""


def _expect_all_right(specification: Specification, count: int, min_margin: float = LEAST_MARGIN) -> None:
    """`count` prompts of every condition, other ids in each."""
    loaded_model = build(specification)
    for place, (name, stories) in enumerate(conditions(specification.boxes).items()):
        result = accuracy(
            loaded_model, [stories.prompt(number) for number in range(place * count, (place + 1) * count)]
        )
        assert result.right == result.n == count, f"{specification.name}, {name}: {result}"
        assert result.smallest_margin > min_margin, f"{specification.name}, {name}: {result}"


@pytest.mark.parametrize("boxes", sampled([3, 5]))
@pytest.mark.parametrize("mechanism", sampled(["pointer", "global"]))
def test_right_in_every_condition(mechanism: str, boxes: int) -> None:
    """With and without a swap, partner named first or second, counterbalanced, and with a distractor."""
    _expect_all_right(Specification(mechanism, boxes=boxes), 50)


@pytest.mark.slow
@pytest.mark.parametrize("boxes", [3, 5])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_right_on_a_thousand(mechanism: str, architecture: str, boxes: int) -> None:
    """A thousand prompts of each plant, dealt out over its conditions."""
    _expect_all_right(Specification(mechanism, architecture, boxes=boxes), math.ceil(1000 / len(conditions(boxes))))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_right_at_both_ends_of_softness(mechanism: str, architecture: str) -> None:
    for softness in (0.0, 1.0):
        _expect_all_right(Specification(mechanism, architecture, softness=softness), 200, min_margin=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_right_with_seven_boxes(mechanism: str) -> None:
    _expect_all_right(Specification(mechanism, boxes=7), 100)


def _ask_about_each_box(prompt: Prompt) -> Sequence[Prompt]:
    return [replace(prompt, question=box) for box in prompt.story.boxes]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_box_of_a_story_and_the_raw_form(mechanism: str) -> None:
    """A plant knows distances within the story alone, so the chat around it makes no difference."""
    loaded_model = plant(mechanism)
    questions = [
        question for number in range(5) for question in _ask_about_each_box(design("published").prompt(number))
    ]
    for form in ("template", "raw"):
        prompts = Encoder(loaded_model.tokenizer, form).encode(questions)
        assert margins(loaded_model, prompts).min() > LEAST_MARGIN, form


FILE = whole_table()


def test_every_row_has_every_mechanism() -> None:
    first = truth_of("pointer")
    assert len(first) == len(FILE["rows"]) + sum(row.startswith("tracing.") for row in FILE["rows"])
    for mechanism in MECHANISMS:
        rows = truth_of(mechanism)
        assert rows.keys() == first.keys()
        assert all(truth.n > 0 and truth.reason.endswith(".") for truth in rows.values())
        assert all((truth.detail is not None) == (truth.verdict in ("INVALID", "REPORTED")) for truth in rows.values())


def test_every_reason_is_used_and_every_variant_known() -> None:
    cells = [cell for row in FILE["rows"].values() for cell in row.values() if isinstance(cell, str)]
    cells += [cell for variant in FILE["variants"].values() for cell in variant.values()]
    assert {cell.partition(" ")[2] for cell in cells} == set(FILE["reasons"])
    assert set(FILE["variants"]) <= set(VARIANTS)
    for name, changes in FILE["variants"].items():
        for mechanism in VARIANTS[name].mechanisms:
            plain, changed = truth_of(mechanism), truth_of(mechanism, name)
            assert {row.replace("tracing.five_boxes.", "tracing.") for row in changed} == set(changes), name
            same = [row for row, truth in changed.items() if (plain[row], plain[row].reason) == (truth, truth.reason)]
            assert not same, f"{name} states what holds of {mechanism} for the same reason"


def test_nothing_is_stated_twice() -> None:
    with pytest.raises(ValueError, match="rows: a stands in two files"):
        add_once({"a": 1}, {"a": 1}, "rows")


@pytest.mark.parametrize("name", ["pointer@gemma2", "lexical"])
def test_the_table_shows_circuit_and_truth(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["planted", name]) == 0
    output = capsys.readouterr().out
    assert output == table(name) + "\n"
    loaded_model = plant(name)
    assert all(row in output for row in loaded_model.truth)
    assert all(f"{head.layer}.{head.head}" in output for head in loaded_model.circuit)
    assert all(role in output for role in {head.role for head in loaded_model.circuit})


@pytest.mark.parametrize("softness", [0.5, 0.75, 1])
def test_printed_numbers_are_measured(softness: float) -> None:
    """Worked out from the lines, against the weights; the words' jitter is what the calculation leaves out."""
    loaded_model, prompts = plant(f"pointer?softness={softness}"), encoded("published", 24)
    values = margins(loaded_model, prompts)
    spread = 4 * float(values.std()) / len(prompts) ** 0.5  # four standard errors
    # A norm with features of eight units in it is 0.3 % smaller than with the constant alone, on each of some layers.
    assert abs(float(values.mean()) - loaded_model.printed["margin.full"]) < spread + 0.1
    answers = torch.tensor([loaded_model.tokenizer.convert_tokens_to_ids(prompt.prompt.answer) for prompt in prompts])
    margin = logits(loaded_model, prompts).gather(1, answers[:, None])
    assert abs(float(margin.mean()) - loaded_model.printed["logit.full"]) < spread + 0.1


def test_no_number_is_of_another_mechanism() -> None:
    """Every mechanism is compared with the pointer's numbers, which is what makes value rows fail on the others."""
    pointer, recency = (plant(name).printed for name in ("pointer", "recency"))
    assert {name: value for name, value in pointer.items() if not name.startswith("heads")} == {
        name: value for name, value in recency.items() if not name.startswith("heads")
    }
