"""What a card says of base and licence, and that a licence is known before anything is trained."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rebinding.cli.commands import main
from rebinding.learned.shelf import CARD_FILE, CARD_PAGE, Card, Digest, Learned, Licence, learned_models
from rebinding.models import load
from tests.learned.small import save

SHORT = ("--steps", "1", "--stories", "1", "--rank", "2", "--prompts", "1")


def render_page(licence: Licence) -> str:
    output = Card.read(learned_models()[0].folder)
    return replace(output, base="owner/name", digest=Digest("the file", "0" * 64), licence=licence).page()


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
    stored = Card.read(out)
    assert stored.licence == Licence("gemma", "gemma")
    assert stored.digest.sha256 == load(str(base), device="cpu").fingerprint
    assert stored.page() == (out / CARD_PAGE).read_text("utf-8")
    plain = json.loads((out / CARD_FILE).read_text("utf-8"))
    assert (plain["license"], plain["base_license"]) == ("gemma", "gemma")


def test_a_licence_that_is_given_stands_beside_that_of_the_base(tmp_path: Path) -> None:
    base, out = save(tmp_path / "base"), tmp_path / "out"
    (base / "README.md").write_text("---\nlicense: gemma\n---\n")
    assert main(["train", str(base), "--out", str(out), *SHORT, "--license", "Gemma Terms of Use"]) == 0
    assert Card.read(out).licence == Licence("Gemma Terms of Use", "gemma")


def test_a_gguf_file_is_known_by_its_sha256(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    import hashlib

    from gguf import GGMLQuantizationType

    from tests.models.gguf_files import write

    base, out = tmp_path / "base.gguf", tmp_path / "out"
    write(base, GGMLQuantizationType.Q8_0)
    assert main(["train", str(base), "--out", str(out), *SHORT, "--license", "mit"]) == 0
    assert Card.read(out).digest == Digest("the file", hashlib.sha256(base.read_bytes()).hexdigest())


@pytest.mark.parametrize("learned", learned_models(), ids=lambda learned: learned.folder.name)
def test_adapters_that_come_with_the_project_name_their_base(learned: Learned) -> None:
    """Their base is known by the digest under which it is looked for; its header states the licence."""
    stored = Card.read(learned.folder)
    licence = "gemma" if learned.base.terms else "apache-2.0"
    assert stored.digest == Digest("the file", learned.base.sha256)
    assert stored.licence == Licence(licence, licence)
    assert learned.is_distributed == (learned.base.terms is None)
    assert stored.page() == (learned.folder / CARD_PAGE).read_text("utf-8")
    assert len(stored.curve) <= stored.recipe.steps
    assert (stored.recipe.order, stored.recipe.seed) == (learned.order, learned.seed)


def test_a_page_says_how_to_make_what_is_not_distributed() -> None:
    output = Card.read(learned_models()[0].folder)
    recipe = replace(output.recipe, accuracy=0.97, cool=40, steps=240)
    page = replace(output, base="gemma3-270m", recipe=recipe).page()
    assert "The project does not distribute it, because of the Gemma Terms of Use: `rebinding train" in page
    assert f"'learned:gemma3-270m?seed={recipe.seed}&order={recipe.order}'" in page
    assert "falling to zero over steps 200 to 240" in page
    assert "once 97% of 36 fresh prompts are right in each of these designs: published; " in page
    assert "does not distribute" not in output.page()
