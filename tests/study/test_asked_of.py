"""What a name says of a model before it is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebinding.paper.numbers import checkpoint
from rebinding.study.asked import asked_of


def folder(there: Path, layers: int) -> Path:
    paper = checkpoint("llama3.2-3b")
    config = {"num_hidden_layers": layers, "num_attention_heads": paper.heads, "torch_dtype": "float16"}
    there.mkdir()
    (there / "config.json").write_text(json.dumps(config))
    return there


@pytest.mark.parametrize("name", ["planted:pointer", "llama3.2-3b", "shape:llama3.2-3b"])
def test_the_dtype_is_part_of_what_is_known_of_a_model(name: str) -> None:
    """A plant's truth, and the paper's numbers, are of one precision; a shape has neither."""
    assert asked_of(name).fixed_dtype == (not name.startswith("shape:"))


def test_a_folder_keeps_its_dtype_if_it_has_the_shape_of_the_paper(tmp_path: Path) -> None:
    whole = folder(tmp_path / "whole", checkpoint("llama3.2-3b").layers)
    small = folder(tmp_path / "small", 4)
    assert asked_of(f"llama3.2-3b={whole}").fixed_dtype
    assert not asked_of(f"llama3.2-3b={small}").fixed_dtype
    assert not asked_of(str(whole)).fixed_dtype
    assert [asked_of(f"llama3.2-3b={one}").dtype for one in (whole, small)] == ["bfloat16", "float16"]
