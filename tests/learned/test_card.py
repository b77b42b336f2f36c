"""Cards of learned models: base, licence, recipe, and what a repetition or a run on them says."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from claims.catalogue import claims
from rebinding.cli.commands import main
from rebinding.learned import shelf
from rebinding.learned.lora import WEIGHTS
from rebinding.learned.shelf import (
    CARD_FILE,
    CARD_PAGE,
    Base,
    Card,
    Digest,
    Learned,
    Licence,
    file_digest,
    learned_models,
    parse,
)
from rebinding.models import load, names
from rebinding.report.folder import ReportedRun
from tests.learned.small import save
from tests.real.judged import lacking
from tests.report.folders import make_row

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


pytest.importorskip("gguf")

REPEATABLE = ("--steps", "2", "--stories", "1", "--rank", "2", "--prompts", "3", "--learning-rate", "0.05")


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A learned model that the project has a card of, and not the matrices; its base is a tiny GGUF file."""
    from gguf import GGMLQuantizationType

    from tests.models.gguf_files import write

    file = tmp_path / "base.gguf"
    write(file, GGMLQuantizationType.Q8_0)
    base = Base("tiny", "llama", file.name, file_digest(file), (str(tmp_path),), "no command", "TINY", "its terms")
    for module in (shelf, names):
        monkeypatch.setattr(module, "BASES", {"tiny": base})
    monkeypatch.setattr(shelf, "ADAPTERS", tmp_path / "cards")
    monkeypatch.setenv(shelf.VARIABLE, str(tmp_path / "trained"))
    monkeypatch.setenv(base.variable, str(file))
    folder = tmp_path / "cards" / "tiny-all-0"
    assert main(["train", str(file), "--out", str(folder), "--name", "tiny", "--license", "mit", *REPEATABLE]) == 0
    (folder / WEIGHTS).rename(tmp_path / "expected.safetensors")
    return "learned:tiny"


def test_the_same_machine_makes_the_same_adapter(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["train", name]) == 0
    output = capsys.readouterr().out
    learned = parse(name)
    assert learned.adapter_folder == tmp_path / "trained" / "tiny-all-0"
    assert (learned.adapter_folder / WEIGHTS).read_bytes() == (tmp_path / "expected.safetensors").read_bytes()
    assert "has the sha256 of the project's card" in output
    assert "judge it with pytest claims --model 'learned:tiny?seed=0&order=all'" in output
    assert "without an adapter" not in output, "the card has these accuracies"
    assert Card.read(learned.adapter_folder) == Card.read(learned.folder)
    loaded = load(name, device="cpu")
    assert loaded.weights == "dequantised from Q8_0, with the adapter tiny-all-0"


def test_another_adapter_is_said_to_be_another(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = parse(name).folder / CARD_FILE
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | {"adapter_sha256": "0" * 64}))
    capsys.readouterr()
    assert main(["train", name]) == 0
    output = capsys.readouterr().out
    assert "the project's card 000000000000...: this machine rounds otherwise" in output
    assert f"compare its accuracies with those of {file}" in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "3"), "--steps is set, and learned:tiny?seed=0&order=all is trained by the recipe of its card"),
        (("--learning-rate", "0.1"), "--learning-rate is set"),
        (("--accuracy", "0.9"), "--accuracy is set"),
        (("--license", "mit"), "--license is set"),
    ],
)
def test_a_recipe_of_its_own_is_refused(
    name: str, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["train", name, *options]) == 2
    assert message in capsys.readouterr().err


def test_an_adapter_of_the_project_needs_another_folder(capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["train", "learned:smollm2"]) == 2
    assert "comes with the project: to train it again, give --out FOLDER" in capsys.readouterr().err
    assert main(["train", "owner/name"]) == 2
    assert "--out FOLDER is missing" in capsys.readouterr().err


NAMES = [learned.name for learned in learned_models()]
ROWS = sorted(claim.id for claim in claims() if not claim.long)
HEADLINE_ROWS = sorted(claim.id for claim in claims() if claim.headline)


def make_run(verdicts: dict[tuple[str, str], str]) -> ReportedRun:
    """Every row REPLICATED on every model, except those in `verdicts`; a row with "" is missing."""
    outcomes = {(name, row): "REPLICATED" for name in NAMES for row in ROWS} | verdicts
    claims = tuple(make_row(row, name, verdict=verdict) for (name, row), verdict in outcomes.items() if verdict)
    return ReportedRun({}, {}, (), claims)


def test_a_whole_run_lacks_nothing() -> None:
    assert lacking(make_run({})) == []


def test_a_row_that_was_not_judged_is_named() -> None:
    assert lacking(make_run({(NAMES[1], ROWS[3]): ""})) == [f"{NAMES[1]}: no verdict of 1 rows, such as {ROWS[3]}"]


def test_a_model_on_which_next_to_nothing_is_decided_is_named() -> None:
    small = (len(ROWS) - 1) // 3
    faults = lacking(make_run({(NAMES[0], row): "INVALID" for row in ROWS[small:]}))
    assert faults == [f"{NAMES[0]}: {small} of {len(ROWS)} rows are decided, less than a third"]


def test_the_rows_of_the_headline_claims_are_enough_where_they_are_wanted() -> None:
    others = {(name, row): "" for name in NAMES for row in ROWS if row not in HEADLINE_ROWS}
    assert lacking(make_run(others), headline=True) == []
    assert lacking(make_run(others)) != []
    faults = lacking(make_run(others | {(NAMES[0], HEADLINE_ROWS[1]): ""}), headline=True)
    assert faults == [f"{NAMES[0]}: no verdict of 1 rows, such as {HEADLINE_ROWS[1]}"]


def test_the_commands_run_every_row_that_is_wanted() -> None:
    """`tox -e learned` and `tox -e learned-all` choose rows by their marks, and by nothing else."""
    commands = (Path(__file__).parents[2] / "tox.ini").read_text()
    headline, every = re.findall(r"^ +- pytest claims --learned all (.*)$", commands, re.MULTILINE)
    assert " -m headline " in headline
    assert ' -m "not long" ' in every
    assert " -k " not in headline + every
    assert 0 < len(HEADLINE_ROWS) < len(ROWS) < len(claims())
