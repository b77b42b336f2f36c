"""`discover --positions all`: what it writes is taken by the rest, time is kept, and what is done is not done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rebinding.cli.commands import main
from rebinding.experiments.answers import full_model
from rebinding.experiments.circuit.ablation import evaluate, mean_z
from rebinding.experiments.prompts import Prompts
from rebinding.experiments.search import search
from rebinding.experiments.tokens import positions
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.paper import circuit, graph
from rebinding.study.model_under_test import owner_of

NAME = "planted:lexical@llama"
OPTIONS = ("discover", "--positions", "all", "--model", NAME, "--samples", "36", "--share", "0.002", "--block", "36")


def test_from_the_command_line_to_ablation(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """No minutes: nothing is found, and it says so. Then all of it; then the same from the store, without a model run.
    The circuit file does the task alone, everything else held at its mean."""
    kept = ("--store", str(tmp_path))
    assert main([*OPTIONS, *kept, "--minutes", "0"]) == 0
    assert "0 minutes are up" in capsys.readouterr().out
    files = {option: tmp_path / name for option, name in (("--save", "c.json"), ("--graph", "g.json"))}
    asked = [*OPTIONS, *kept, *(str(part) for pair in files.items() for part in pair)]
    assert main(asked) == 0
    told = capsys.readouterr().out
    monkeypatch.setattr(search, "effect_via_receivers", lambda *_: pytest.fail("a block was computed again"))
    assert main(asked) == 0
    assert capsys.readouterr().out == told
    loaded_model = load(NAME)
    found = circuit.load(files["--save"], owner_of(loaded_model))
    assert found == graph.load(files["--graph"], owner_of(loaded_model)).circuit()
    bench = Workbench(loaded_model)
    prompts = bench.prompts
    drawn = prompts.design("counterbalanced", split="evaluation")
    roles = sorted({head.role for head in found.heads})
    shown = prompts.encode(prompts.draw_with(drawn, 300, 18, roles)).prompts
    answers = prompts.answers(shown)
    means = mean_z(bench.surgeon, prompts.encode(prompts.draw(drawn, range(100, 136))).prompts)
    rows = evaluate(bench.surgeon, shown, answers, range(18), {"it": found}, means, mean_set="counterbalanced").rows
    whole = full_model(bench.surgeon, shown, answers, range(18)).rows
    assert rows["hit"].mean() == whole["hit"].mean() == 1.0


def test_what_only_stages_have_is_refused(capsys: Any) -> None:
    assert main([*OPTIONS, "--no-store", "--minutes", "0", "--top-k", "9,9,9,9,9", "--design", "published"]) == 2
    assert "leave --design, --top-k out, or --positions all" in capsys.readouterr().err


@pytest.mark.parametrize(
    "said",
    [
        ("--graph", "g.json"),
        ("--compare", "g.json"),
        ("--minutes", "3"),
        ("--share", "0.1"),
        ("--min-attention", "0.5"),
    ],
    ids=lambda said: said[0],
)
def test_what_only_the_search_has_is_refused_without_it(said: tuple[str, str], capsys: Any) -> None:
    assert main(["discover", "--model", NAME, "--no-store", *said]) == 2
    assert f" {said[0]}: the stages have no such option; add --positions all" in capsys.readouterr().err


def test_named_tokens_are_roles() -> None:
    """A circuit's role may be any token that has a name; a token that a prompt lacks is refused."""
    drawn = Prompts(load(NAME).encoder())
    prompts = drawn.encode(drawn.draw(drawn.design("counterbalanced"), range(4))).prompts
    words = [one.pieces[at] for one, at in zip(prompts, positions(prompts, "items@swap_first-3").tolist(), strict=True)]
    assert words == ["items"] * 4
    with pytest.raises(ValueError, match="no role 'items@nowhere-3'"):
        positions(prompts, "items@nowhere-3")
