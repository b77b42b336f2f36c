"""The table of `sensitivity`: its conclusions from numbers by hand, its lines from `evaluate`, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import rebinding
from rebinding import Circuit, Model, Prompts, SurgeryError
from rebinding.api.plots import plot_sensitivity
from rebinding.api.sensitivity import _conclusions
from rebinding.cli.commands import main
from rebinding.cli.sensitivity import _stories
from rebinding.task.prompts import PromptError
from rebinding.task.text import WORDINGS

STORY = "Box {first} contains the {here}. Box {second} contains the {there}."
QUESTION = " Which item does Box {asked} contain?"
WORDS = [
    {"first": "K", "second": "D", "here": "boot", "there": "rock", "asked": "K", "wanted": "boot", "other": "rock"},
    {"first": "M", "second": "K", "here": "rock", "there": "boot", "asked": "K", "wanted": "boot", "other": "rock"},
] * 4
ANSWERS = ["{wanted}", "{other}"]


@pytest.fixture(scope="module")
def planted() -> Model:
    return rebinding.load("planted:pointer")


@pytest.fixture(scope="module")
def stories(planted: Model) -> Prompts:
    return planted.stories(rebinding.design("counterbalanced", planted), 36)


def values(circuit: float, spread: float = 0.0, random: float = 0.1) -> dict[str, np.ndarray]:
    """A model at 5 in each prompt, 1 without all heads, and a circuit with a mean of `circuit`."""
    alternating = np.array([1.0, -1.0] * 8)  # (prompt,)
    return {
        "full model": 5 + 0.01 * alternating,
        "circuit": circuit + spread * alternating,
        "without": np.ones(16),
        **{f"random {number}": 1 + random * (1 + 0.1 * number) * np.ones(16) for number in range(6)},
    }


@pytest.mark.parametrize(
    ("circuit", "spread", "random", "recovers", "beats"),
    [
        (4.6, 0.1, 0.1, "yes", "yes"),
        (2.0, 0.1, 0.1, "no", "yes"),
        (4.2, 3.0, 0.1, "open", "yes"),
        (4.6, 0.1, 6.0, "yes", "no"),
    ],
)
def test_conclusions_are_those_of_the_numbers(
    circuit: float, spread: float, random: float, recovers: str, beats: str
) -> None:
    """Of 4 lost, the circuit keeps (circuit - 1) / 4; its interval is that of a mean of 16 values."""
    line = _conclusions(values(circuit, spread, random), 0.8)
    assert line["faithfulness"] == pytest.approx((circuit - 1) / 4)
    assert line["random"] == pytest.approx(random * 1.25 / 4)
    half = 1.96 * spread / 4 / np.sqrt(16)
    assert (float(str(line["low"])), float(str(line["high"]))) == pytest.approx(
        ((circuit - 1) / 4 - half, (circuit - 1) / 4 + half), abs=0.2 * half + 1e-3
    )
    assert (line["recovers"], line["beats_random"]) == (recovers, beats)
    assert (float(str(line["stable"])) == 1.0) == (recovers != "open")


def test_a_divergence_that_falls_counts_as_better() -> None:
    """0 in the model and 4 without all heads: a circuit at 0.4 keeps nine tenths, random ones next to nothing."""
    same = {name: 5 - own for name, own in values(4.6, 0.1).items()}
    line = _conclusions(same, 0.8)
    assert line["faithfulness"] == pytest.approx(0.9)
    assert (line["recovers"], line["beats_random"]) == ("yes", "yes")


def test_what_is_not_lost_has_no_share() -> None:
    own = values(4.6) | {"without": values(4.6)["full model"] + np.array([1.0, -1.0] * 8)}
    line = _conclusions(own, 0.8)
    assert (line["recovers"], line["beats_random"]) == ("undefined", "undefined")
    assert np.isnan(line["faithfulness"])


def test_lines_are_those_of_evaluate(planted: Model, stories: Prompts) -> None:
    """Circuits of heads at all tokens, on two sets of prompts; zeros flip what means show."""
    graph = Circuit.of({"readout": [(6, 0), (6, 3)]})
    sets = {"first": stories[:18], "second": stories[18:]}
    metrics = (rebinding.accuracy, rebinding.logit_difference)
    result = rebinding.sensitivity(
        planted, graph, sets, means={"second": stories}, ablations=["mean", "zero"], metrics=metrics, draws=6
    )
    assert len(result.table) == 8
    for line in result.table.itertuples():
        metric = {function.__name__: function for function in metrics}[line.metric]
        means = stories if (line.prompts, line.ablation) == ("second", "mean") else None
        own = rebinding.evaluate(
            planted, graph, sets[line.prompts], means=means, ablation=line.ablation, metric=metric, draws=6
        )
        assert (own.model, own.circuit) == pytest.approx((line.model, line.circuit), abs=1e-5)
        nothing = rebinding.evaluate(
            planted, Circuit(()), sets[line.prompts], means=means, ablation=line.ablation, metric=metric, draws=0
        )
        assert nothing.circuit == pytest.approx(line.without, abs=1e-5)
        if line.recovers != "undefined":
            expected = (np.mean(own.random) - line.without) / (line.model - line.without)
            assert line.random == pytest.approx(expected, abs=1e-5)


def test_flips_are_found(planted: Model, stories: Prompts) -> None:
    """A circuit that recovers the task with means, and does not with zeros, which the plant never saw."""
    circuit = Circuit(
        tuple(
            head
            for head in rebinding.discover(
                planted, planted.story_pairs(rebinding.design("counterbalanced", planted), 36), positions="all"
            )
            .circuit()
            .heads
        )
    )
    of_roles = stories.having(*{head.role for head in circuit.heads if "@" not in head.role})
    result = rebinding.sensitivity(
        planted, circuit, {"stories": of_roles}, means={"stories": stories}, ablations=["mean", "zero"],
        metrics=[rebinding.logit_difference], draws=6,
    )  # fmt: skip
    assert result.table["recovers"].tolist() == ["yes", "no"]
    assert result.flips["ablation"].tolist() == ["zero"]
    assert "recovers" in result.flips["flips"].iloc[0]
    labels = plot_sensitivity(result).get_yticklabels()
    assert [label.get_text() for label in labels] == [
        "stories, mean, logit_difference", "stories, zero, logit_difference *"
    ]  # fmt: skip
    assert [label.get_color() for label in labels] == ["black", "C3"]


def test_prompts_that_do_not_fit_are_refused(planted: Model) -> None:
    """A template that moves roles, one that lacks one, few prompts, and words that are none."""
    circuit = Circuit.of({"here": [(1, 2)], "asked": [(6, 0)]})
    usual = planted.fill(STORY + QUESTION, WORDS, answers=ANSWERS)
    moved = planted.fill(QUESTION.strip() + " " + STORY, WORDS, answers=ANSWERS)
    lacking = planted.fill(STORY.replace("{here}", "boot") + QUESTION, WORDS, answers=ANSWERS)

    def check(expected: str, error: type[ValueError] = PromptError, **options: object) -> None:
        with pytest.raises(error, match=expected):
            rebinding.sensitivity(planted, circuit, **{"prompts": {"usual": usual}, **options})  # type: ignore[arg-type]

    check(r"'moved' moves roles: asked, here come in this order there, and in no prompt of 'usual'",
          prompts={"usual": usual, "moved": moved})  # fmt: skip
    check(r"'lacking': .*here", prompts={"usual": usual, "lacking": lacking})
    check(r"'few': an interval needs 8 prompts or more; got 7", prompts={"few": usual[:7]})
    check("sets by name", prompts=usual)
    check("there are no prompts 'other'", means={"other": usual})
    check(r"unknown ablation 'median'", SurgeryError, ablations=["median"])
    check(r"a share above 0 and at most 1.*share=1.5", SurgeryError, share=1.5)


def test_the_command_takes_templates(planted: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two templates that share rows; a table and a picture are written, and a file without rows is refused."""
    file, table, figure = tmp_path / "circuit.json", tmp_path / "table.csv", tmp_path / "table.png"
    planted.save(Circuit.of({"here": [(1, 2)], "readout": [(6, 0)]}), file)
    rows = "\n".join("[[rows]]\n" + "\n".join(f'{key} = "{word}"' for key, word in row.items()) for row in WORDS)
    texts = {"usual": STORY + QUESTION, "short": STORY}
    templates = "".join(f'[{name}]\ntemplate = "{text}"\nanswers = {ANSWERS}\n' for name, text in texts.items())
    own = tmp_path / "templates.toml"
    own.write_text(templates + rows)
    words = ["sensitivity", "--model", "planted:pointer", "--circuit", str(file), "--ablation", "mean", "--draws", "6"]
    words += ["--metric", "kl-divergence", "--table", str(table), "--figure", str(figure)]
    assert main([*words, "--templates", str(own)]) == 0
    written = pd.read_csv(table)
    assert written[["prompts", "ablation", "metric"]].to_numpy().tolist() == [
        ["usual", "mean", "kl_divergence"], ["short", "mean", "kl_divergence"]
    ]  # fmt: skip
    expected = rebinding.sensitivity(
        planted, planted.load_circuit(file),
        {name: planted.fill(text, WORDS, answers=ANSWERS) for name, text in texts.items()},
        ablations=["mean"], metrics=[rebinding.kl_divergence], draws=6,
    )  # fmt: skip
    assert np.allclose(written["circuit"], expected.table["circuit"], rtol=0, atol=1e-5)
    assert figure.stat().st_size > 1000
    assert "of 2 lines flip a conclusion of the first (usual, mean, kl_divergence)" in capsys.readouterr().out
    own.write_text(templates)
    assert main([*words, "--templates", str(own)]) == 2
    assert "'usual' has to be a table with a template, answers" in capsys.readouterr().err


def test_the_command_takes_stories(planted: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planted.save(Circuit.of({"swap_partner": [(1, 2)], "readout": [(6, 0)]}), tmp_path / "circuit.json")
    words = ["sensitivity", "--model", "planted:pointer", "--circuit", str(tmp_path / "circuit.json")]
    assert main([*words, "--samples", "18", "--ablation", "mean", "--metric", "accuracy", "--draws", "6"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("stories", "other words", "with sentences between"))


def test_other_models_get_paraphrases_too(planted: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant knows the published words alone."""
    circuit = Circuit.of({"question_box": [(1, 2)]})
    usual = {"stories", "other words", "with sentences between"}
    assert _stories(planted, circuit, 12, 3)[0].keys() == usual
    monkeypatch.setattr("rebinding.cli.sensitivity.origin", lambda name: SimpleNamespace(kind="folder"))
    sets, means = _stories(planted, circuit, 12, 3)
    paraphrases = {f'wording "{name}"' for name in WORDINGS if name != "published"}
    assert sets.keys() == means.keys() == usual | paraphrases
    assert all(" stores the " in text for text in sets['wording "stores"'].texts)
