"""What a card says of base and licence, and that a licence is known before anything is trained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rebinding.cli.commands import main
from rebinding.learned import card
from rebinding.learned.card import Card, Digest, Licence
from rebinding.learned.shelf import Learned, shipped
from rebinding.models import load
from tests.learned.cards import read_card
from tests.learned.small import save

SHORT = ("--steps", "1", "--stories", "1", "--rank", "2", "--prompts", "1")


def render_page(licence: Licence) -> str:
    output = read_card(shipped()[0].folder)
    return Card("owner/name", Digest("the file", "0" * 64), licence, output.recipe, output.curve, {}, {}).page()


def test_a_page_says_which_base_and_which_licence() -> None:
    page = render_page(Licence("gemma", "gemma"))
    assert page.startswith("---\nlicense: gemma\n")
    assert f"* Base: owner/name; sha256 of the file: `{'0' * 64}`.\n" in page
    assert "* Licence: gemma, which the base states.\n" in page
    assert "pache" not in page
    assert render_page(Licence("Apache-2.0", None)).startswith("---\nlicense: apache-2.0\n")


def test_a_licence_that_the_base_does_not_state_is_said_to_be_given() -> None:
    page = render_page(Licence("Gemma Terms of Use", None))
    assert page.startswith('---\nlicense: other\nlicense_name: "Gemma Terms of Use"\n')
    assert "Gemma Terms of Use, given by who trained it; the base states none that could be read.\n" in page
    assert "mit, given by who trained it; the base states gemma.\n" in render_page(Licence("mit", "gemma"))


@pytest.mark.parametrize("text", ["", " ", "mit\nbase_model: other", "mit\x1b[31m"])
def test_a_text_that_is_no_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="give the name of a licence on one line"):
        Licence(text, None)


def test_train_asks_for_a_licence_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rebinding.models.loaded_model._open", lambda *_: pytest.fail("a model is opened"))
    base, out = save(tmp_path / "base"), tmp_path / "out"
    capsys.readouterr()
    assert main(["train", str(base), "--out", str(out), *SHORT]) == 2
    output = capsys.readouterr()
    assert f"{base} states no licence that can be read" in output.err
    assert "give --license TEXT" in output.err
    assert output.out == ""
    assert not out.exists()
    assert main(["train", str(base), "--out", str(out), *SHORT, "--license", ""]) == 2
    assert "--license '': give the name of a licence" in capsys.readouterr().err


def test_train_takes_the_licence_that_the_base_states(tmp_path: Path) -> None:
    base, out = save(tmp_path / "base"), tmp_path / "out"
    (base / "README.md").write_text("---\nlicense: gemma\n---\n")
    assert main(["train", str(base), "--out", str(out), *SHORT]) == 0
    stored = read_card(out)
    assert stored.licence == Licence("gemma", "gemma")
    assert stored.digest.sha256 == load(str(base), device="cpu").fingerprint
    assert stored.page() == (out / card.PAGE).read_text("utf-8")
    plain = json.loads((out / card.FILE).read_text("utf-8"))
    assert (plain["license"], plain["base_license"]) == ("gemma", "gemma")


def test_a_licence_that_is_given_stands_beside_that_of_the_base(tmp_path: Path) -> None:
    base, out = save(tmp_path / "base"), tmp_path / "out"
    (base / "README.md").write_text("---\nlicense: gemma\n---\n")
    assert main(["train", str(base), "--out", str(out), *SHORT, "--license", "Gemma Terms of Use"]) == 0
    assert read_card(out).licence == Licence("Gemma Terms of Use", "gemma")


def test_a_gguf_file_is_known_by_its_sha256(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    import hashlib

    from gguf import GGMLQuantizationType

    from tests.models.gguf_files import write

    base, out = tmp_path / "base.gguf", tmp_path / "out"
    write(base, GGMLQuantizationType.Q8_0)
    assert main(["train", str(base), "--out", str(out), *SHORT, "--license", "mit"]) == 0
    assert read_card(out).digest == Digest("the file", hashlib.sha256(base.read_bytes()).hexdigest())


@pytest.mark.parametrize("learned", shipped(), ids=lambda learned: learned.folder.name)
def test_adapters_that_come_with_the_project_name_their_base(learned: Learned) -> None:
    """Their base is known by the digest under which it is looked for; its header states apache-2.0."""
    stored = read_card(learned.folder)
    assert stored.digest == Digest("the file", learned.base.sha256)
    assert stored.licence == Licence("apache-2.0", "apache-2.0")
