"""What the name of a model tells before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebinding.experiments.unedited import Ability
from rebinding.paper.numbers import checkpoint
from rebinding.study.gates import EvidenceLog, Gates
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import PLANTED, ModelUnderTest
from rebinding.study.settings import Settings


def folder(path: Path, layers: int) -> Path:
    paper = checkpoint("llama3.2-3b")
    config = {"num_hidden_layers": layers, "num_attention_heads": paper.heads, "torch_dtype": "float16"}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.mark.parametrize("name", ["planted:pointer", "llama3.2-3b", "shape:llama3.2-3b"])
def test_the_dtype_is_part_of_what_is_known_of_a_model(name: str) -> None:
    """A plant's truth, and the paper's numbers, are of one precision; a shape has neither."""
    assert parse_model(name).fixed_dtype == (not name.startswith("shape:"))


def test_a_folder_keeps_its_dtype_if_it_has_the_shape_of_the_paper(tmp_path: Path) -> None:
    full = folder(tmp_path / "full", checkpoint("llama3.2-3b").layers)
    small = folder(tmp_path / "small", 4)
    assert parse_model(f"llama3.2-3b={full}").fixed_dtype
    assert not parse_model(f"llama3.2-3b={small}").fixed_dtype
    assert not parse_model(str(full)).fixed_dtype
    assert [parse_model(f"llama3.2-3b={path}").dtype for path in (full, small)] == ["bfloat16", "float16"]


def test_as_many_prompts_are_asked_as_there_are_boxes_for() -> None:
    """Stories of five boxes are another task, and of a plant another model."""
    gates = Gates(ModelUnderTest(parse_model("planted:pointer"), Settings(())), EvidenceLog())
    for boxes, size in ((3, "able"), (5, "able_wide")):
        gates.log.used.clear()
        gates.check_ability(boxes)
        (request,) = (use.request for use in gates.log.used)
        assert isinstance(request, Ability)
        assert (request.prompts.boxes, len(request.prompts.ids)) == (boxes, PLANTED[size])


def test_a_plants_number_is_printed_with_two_digits() -> None:
    """Of 300 prompts, or ten draws: as the paper prints its own."""
    number = ModelUnderTest(parse_model("planted:pointer"), Settings(())).printed("accuracy.circuit")
    assert number is not None
    assert (number.half_width, number.n, number.draws, number.kind, number.source) == (
        0.005,
        300,
        10,
        "accuracy",
        "planted",
    )
    assert number.printed == f"{number.value:.2f}"
