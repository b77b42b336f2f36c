"""`rebinding certify`: the certificate of a folder is printed and saved; a wrong surgeon fails it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rebinding.cli.certify import parse_layers
from rebinding.cli.commands import main
from rebinding.evidence.certificates import certificate_file, find_certificate
from rebinding.paper.certificate import load
from rebinding.surgery import batch
from tests.models.folders import save_tiny
from tests.report.test_json_schemas import fits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny(tmp_path_factory.mktemp("certify") / "model"))


def test_a_certificate_is_saved_where_reports_find_it(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certify", folder, "--store", str(tmp_path), "--json"]) == 0
    output = capsys.readouterr()
    content = json.loads(output.out)
    assert output.err == ""  # no progress outside of a terminal
    assert fits("certificate", content)
    found = find_certificate(tmp_path, content["fingerprint"], "float32")
    assert found is not None
    assert found == load(certificate_file(tmp_path, content["fingerprint"]))
    assert (found.model, found.layers, found.gaps, found.errors) == (folder, (0, 1, 2, 3), (), ())


def test_the_text_ends_with_the_result_and_the_file(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.json"
    assert main(["certify", folder, "--layers", "1,3", "--output", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{folder}: LlamaForCausalLM, fingerprint ")
    assert lines[-2].startswith("Certified at layers 1, 3: 13 sites, largest deviation ")
    assert lines[-1] == f"saved: {path}"
    assert load(path).layers == (1, 3)


def test_a_wrong_edit_fails_the_certificate(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fast surgeon writes edits of z twice."""
    right: Callable[..., None] = batch.write

    def write(value: Any, placed: Any, first: Any) -> None:
        for _ in range(2 if placed.edit.site == "z" else 1):
            right(value, placed, first)

    monkeypatch.setattr(batch, "write", write)
    assert main(["certify", folder, "--layers", "2", "--store", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    wrong = [line for line in lines if line.startswith("wrong: ")]
    assert [line.split(":")[1].strip() for line in wrong] == ["z", "z frozen"]
    assert "layer 2" in wrong[0]
    assert lines[-2] == "Not certified"


@pytest.mark.parametrize(("text", "layers"), [("0", [0]), ("0,12-15,31", [0, 12, 13, 14, 15, 31]), ("3-3", [3])])
def test_layers_are_numbers_and_ranges(text: str, layers: list[int]) -> None:
    assert parse_layers(text) == layers


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "0,,1", "1-", "0-99999999999"])
def test_other_layers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give numbers and ranges from 0 on"):
        parse_layers(text)


def test_layers_that_the_model_lacks_are_refused(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["certify", folder, "--layers", "0,4"]) == 2
    assert capsys.readouterr().err.endswith("--layers 0,4: " + f"{folder} has layers 0 to 3\n")
