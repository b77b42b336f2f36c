"""The truth table is complete and readable, and its numbers are those that the model shows."""

from __future__ import annotations

import pytest
import torch

from rebinding.cli.commands import main
from rebinding.planted import MECHANISMS, VARIANTS
from rebinding.planted.show import table
from rebinding.planted.truth import add_once, truth_of, whole_table
from tests.planted.runs import encoded, logits, margins, plant

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
