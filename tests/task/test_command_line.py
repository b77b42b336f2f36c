"""`rebinding`: a pair with its roles, under any tokenizer, and errors without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rebinding.cli.commands import SUBCOMMANDS, main
from rebinding.cli.prompt import describe
from rebinding.task.designs import PAIRS, design, pair_of
from rebinding.task.prompts import Encoder

from .tokenizers import byte_level, word_level


def table(text: str) -> dict[str, list[str]]:
    rows = text.split("counterfactual\n")[-1].split("\n\n")[0].splitlines()
    return {row.split()[0]: row.split()[1:] for row in rows}


def test_default_tokenizer_is_the_projects_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompt"]) == 0
    output = capsys.readouterr().out
    assert "Box [B] contains the [chemical]. Box [K] contains the [shell]." in output
    assert "Swap the items of Box [[K]] and Box [B][.]" in output
    assert "Swap the items of Box [[J]] and Box [B][.]" in output
    assert "answer: shell" in output
    assert "answer: boot" in output
    assert table(output)["swap_partner"] == ["60", "K", "60", "J"]
    assert table(output)["context_partner"] == ["44", "K", "50", "J"]
    assert "tokens that differ: 60" in output


def test_a_folder_is_read_with_its_own_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    byte_level().save_pretrained(tmp_path)
    assert main(["prompt", "--model", str(tmp_path), "--id", "1", "--pair", "no_swap", "--split", "test"]) == 0
    output = capsys.readouterr().out
    assert "form llama3" in output
    assert "original (106 tokens, answer: cup)" in output
    assert table(output)["swap_period"] == ["89", ".\\n\\n", "-"]
    assert "the prompts differ in length" in output


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("name", ["published", "counterbalanced"])
def test_every_kind_of_pair_can_be_shown(name: str, kind: str) -> None:
    stories = design(name)  # type: ignore[arg-type]  # one of the designs
    output = describe(stories, pair_of(stories, 4, kind), Encoder(word_level()))
    assert f"{name} design, split {stories.split}, id 4, pair {kind}, form template" in output
    assert table(output)["readout"][:2] == ["78", ":"]


def test_colour_marks_roles_and_changes() -> None:
    stories = design()
    output = describe(stories, stories.tracing(0, "swap_only"), Encoder(word_level()), colour=True)
    assert "Box \x1b[1;33mF\x1b[0m\x1b[36m.\x1b[0m" in output
    assert "contains the \x1b[36mshell\x1b[0m" in output
    assert "[[" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["prompt", "--id", "-1"], "rebinding prompt: a prompt id is a whole number from 0 on; got -1"),
        (["prompt", "--boxes", "27"], "27 boxes given; a story has 2 to 26"),
        (["prompt", "--model", "./nowhere"], "nowhere"),
        (["prompt", "--split", "evaluation"], "published has no split 'evaluation'; it has train, test, none"),
        (["prompts"], "unknown command 'prompts'"),
        ([], "usage: rebinding COMMAND"),
    ],
)
def test_bad_input_ends_with_a_message(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.out == ""


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(f"  {name}" in output for name in SUBCOMMANDS)


def test_commands_are_imported_when_they_run() -> None:
    """Asking for help imports neither torch nor transformers, and no command."""
    code = "import sys; from rebinding.cli.commands import main; main(['--help']); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.splitlines()[-1].split())
    assert "rebinding.cli.commands" in loaded
    assert loaded.isdisjoint({"torch", "transformers", *(subcommand.module for subcommand in SUBCOMMANDS.values())})
