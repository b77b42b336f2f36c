"""The script that draws the figures of the docs: what it refuses, and what the figure on key dominance shows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rebinding.experiments.binding.conditions import QK, K, Q
from rebinding.experiments.binding.summary import summary
from rebinding.experiments.prompts import MOST_PROMPTS
from tests.experiments.setup import random_model

SCRIPT = Path(__file__).parents[2] / "docs" / "figures" / "draw.py"
SPEC = importlib.util.spec_from_file_location("draw", SCRIPT)
assert SPEC is not None
assert SPEC.loader is not None
draw = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(draw)

REFUSED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("tracing", "file"), "the folder file: file is a file"),
    (("tracing", "out", "--samples", "0"), f"--samples 0: give 1 to {MOST_PROMPTS}"),
    (("tracing", "out", "--mode", "object"), "--mode object: give PANEL=MODE"),
    (("tracing", "out", "--mode", "box=swap_only"), "one of the panels reference_box"),
    (("tracing", "out", "--mode", "object=nope"), "'nope'"),
    (("tracing", "out", "--model", "gpt2"), "(did you mean openai-community/gpt2?)"),
    (("key-dominance", "out", "--samples", "-1"), f"--samples -1: give 1 to {MOST_PROMPTS}"),
)


@pytest.mark.parametrize(
    ("arguments", "message"), REFUSED, ids=lambda arguments: " ".join(arguments) if type(arguments) is tuple else ""
)
def test_bad_options(arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(draw, "build", lambda *_, **__: pytest.fail("the work has begun"))
    monkeypatch.setattr("rebinding.models.loaded_model._open", lambda *_, **__: pytest.fail("the work has begun"))
    with pytest.raises(SystemExit) as exit_info:
        draw.main(arguments)
    assert message in str(exit_info.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_key_dominance_figure_has_both_designs_and_every_pair() -> None:
    bench = random_model("llama")
    evidence = {("some", design): bench.binding(design, (Q, K, QK), n=9) for design in draw.COLOURS}
    left_axes, right = draw.key_dominance_figure(evidence).axes
    expected = summary(evidence["some", "published"])["dR"].tolist()
    assert [container.lines[0].get_xdata()[0] for container in left_axes.containers[:3]] == pytest.approx(expected)
    assert len(right.containers) == 6
