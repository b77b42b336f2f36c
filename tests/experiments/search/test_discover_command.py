"""`discover --positions all`: what it writes is taken by the rest, time is kept, and what is done is not done again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rebinding.cli.commands import main
from rebinding.experiments.ablation import evaluate, mean_z
from rebinding.experiments.prompts import Stories
from rebinding.experiments.search import graph, search
from rebinding.experiments.tokens import full_model, positions
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from rebinding.models.loaded_model import owner_of
from rebinding.paper import circuit

NAME = "planted:lexical@llama"
OPTIONS = ("discover", "--positions", "all", "--model", NAME, "--samples", "36", "--share", "0.002", "--block", "36")


def test_saved_circuit_can_be_ablated(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """No minutes: nothing is found, and it says so. Then all of it; then the same from the store, without a model run.
    The circuit file does the task alone, everything else held at its mean."""
    store_options = ("--store", str(tmp_path))
    assert main([*OPTIONS, *store_options, "--minutes", "0"]) == 0
    assert "0 minutes are up" in capsys.readouterr().out
    files = {option: tmp_path / name for option, name in (("--save", "c.json"), ("--graph", "g.json"))}
    arguments = [*OPTIONS, *store_options, *(str(part) for pair in files.items() for part in pair)]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    monkeypatch.setattr(search, "effect_via_receivers", lambda *_: pytest.fail("a block was computed again"))
    assert main(arguments) == 0
    assert capsys.readouterr().out == output
    loaded_model = load(NAME)
    loaded_circuit = circuit.load(files["--save"], owner_of(loaded_model))
    assert loaded_circuit == graph.load(files["--graph"], owner_of(loaded_model)).circuit()
    bench = Workbench(loaded_model)
    prompts = bench.prompts
    design = prompts.design("counterbalanced", split="evaluation")
    roles = sorted({head.role for head in loaded_circuit.heads})
    encoded = prompts.encode(prompts.draw_with(design, 300, 18, roles)).prompts
    answers = prompts.answers(encoded)
    means = mean_z(bench.surgeon, prompts.encode(prompts.draw(design, range(100, 136))).prompts)
    rows = evaluate(
        bench.surgeon, encoded, answers, range(18), {"it": loaded_circuit}, means, mean_set="counterbalanced"
    ).rows
    full = full_model(bench.surgeon, encoded, answers, range(18)).rows
    assert rows["hit"].mean() == full["hit"].mean() == 1.0


def test_stage_only_options_are_refused(capsys: Any) -> None:
    assert main([*OPTIONS, "--no-store", "--minutes", "0", "--top-k", "9,9,9,9,9", "--design", "published"]) == 2
    assert "leave --design, --top-k out, or --positions all" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option",
    [
        ("--graph", "g.json"),
        ("--compare", "g.json"),
        ("--minutes", "3"),
        ("--share", "0.1"),
        ("--min-attention", "0.5"),
        ("--screen", "none"),
    ],
    ids=lambda option: option[0],
)
def test_search_only_options_are_refused_without_search(option: tuple[str, str], capsys: Any) -> None:
    assert main(["discover", "--model", NAME, "--no-store", *option]) == 2
    assert f" {option[0]}: the stages have no such option; add --positions all" in capsys.readouterr().err


def test_named_tokens_are_roles() -> None:
    """A circuit's role may be any token that has a name; a token that a prompt lacks is refused."""
    prompt_source = Stories(load(NAME).encoder())
    prompts = prompt_source.encode(prompt_source.draw(prompt_source.design("counterbalanced"), range(4))).prompts
    words = [
        prompt.pieces[at] for prompt, at in zip(prompts, positions(prompts, "items@swap_first-3").tolist(), strict=True)
    ]
    assert words == ["items"] * 4
    with pytest.raises(ValueError, match="no role 'items@nowhere-3'"):
        positions(prompts, "items@nowhere-3")
