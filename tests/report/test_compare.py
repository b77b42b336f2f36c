"""`rebinding compare FIRST SECOND` lists what changed, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rebinding.cli.commands import main
from tests.report.folders import make, make_row

ROW = "binding.q_redirects"


def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str], first: Any, second: Any) -> tuple[int, str]:
    """Exit code and output for two reports, each a list of judgements."""
    folders = [str(make(tmp_path / name, claims, bare=True)) for name, claims in (("a", first), ("b", second))]
    code = main(["compare", *folders])
    return code, capsys.readouterr().out


def test_the_same_report_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints only the last line, also if an estimate differs by the rounding of another processor."""
    code, out = compare(tmp_path, capsys, [make_row()], [make_row(measured=1.0 + 1e-6)])
    line = "1 rows in both: 0 with another verdict, 0 with another estimate; 1 rest on the same requests, 0 on others"
    assert (code, out.strip()) == (0, line)


def test_another_verdict_is_listed_with_its_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is 1; a row with another estimate alone is listed apart, in half widths of its interval."""
    before = [make_row(), make_row("roles.b_moves_pointer", measured=2.0, low=1.9, high=2.1)]
    after = [
        make_row(verdict="INVALID", gate="finite", measured=None, low=None, high=None),
        make_row("roles.b_moves_pointer", measured=2.05, low=1.95, high=2.15),
    ]
    code, out = compare(tmp_path, capsys, before, after)
    assert code == 1
    verdicts, estimates = out.split("estimates\n")
    assert f"{ROW}  planted:pointer@llama: REPLICATED -> INVALID (finite); 1 [0.9, 1.1] n=60 -> no estimate" in verdicts
    assert (
        "roles.b_moves_pointer  planted:pointer@llama: 2 [1.9, 2.1] n=60 -> 2.05 [1.95, 2.15] n=60, 0.5 half"
        in estimates
    )
    assert ROW not in estimates
    assert "2 rows in both: 1 with another verdict, 1 with another estimate" in out


def test_another_part_of_a_sentence_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its number measures something else, so a change in half widths would mean nothing."""
    parts = ("keys", "dR"), ("keys", "p")
    first, second = (make_row(part=part, measured=number) for part, number in zip(parts, (1.0, 3.0), strict=True))
    assert first.reason == second.reason
    code, out = compare(tmp_path, capsys, [first], [second])
    assert code == 0
    assert f"{ROW}  planted:pointer@llama: 1 [0.9, 1.1] n=60 (by keys: dR) -> 3 [0.9, 1.1] n=60 (by keys: p)\n" in out


def test_a_reason_names_no_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Different reasons do not mean different parts; nor does an older report, which names no parts."""
    reasons = "dR: 1 in [0.9, 1.1]", "p: 1 in [0.9, 1.1]"
    first, second = (make_row(reason=reason, part=("dR",), measured=1.0) for reason in reasons)
    _, out = compare(tmp_path / "prose", capsys, [first], [second])
    assert "0 with another estimate" in out
    folders = [make(tmp_path / name, [second], bare=True) for name in ("old", "new")]
    path = folders[0] / "claims.json"
    content = json.loads(path.read_text())
    del content["claims"][0]["part"], content["claims"][0]["unidentified"]
    path.write_text(json.dumps(content))
    assert main(["compare", *map(str, folders)]) == 0
    assert "0 with another estimate" in capsys.readouterr().out


def test_requests_options_versions_and_weights_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another number of prompts is another request; rows and models of one report only are listed; so are versions,
    options and weights."""
    first = make(tmp_path / "a", [make_row(), make_row("x.only_before")], bare=True)
    second = make(
        tmp_path / "b", [make_row(evidence=("other",), n=24, verdict="INCONCLUSIVE"), make_row(model="m2")], bare=True
    )
    path = second / "claims.json"
    content = json.loads(path.read_text())
    content["software"]["torch"] = "9.9"
    content["settings"]["samples"] = 24
    content["models"][0]["fingerprint"] = "f" * 64
    path.write_text(json.dumps(content))
    assert main(["compare", str(first), str(second)]) == 1
    out = capsys.readouterr().out
    for line in (
        "samples: None -> 24",
        "torch: 2.13 -> 9.9",
        f"planted:pointer@llama: fingerprint: {'0123abcd' * 4}0123a... -> {'f' * 37}...",
        "m2: in the second report only",
        "x.only_before  planted:pointer@llama: REPLICATED (first)",
        f"{ROW}  m2: REPLICATED (second)",
        "it rests on other requests",
        "0 rest on the same requests, 1 on others",
    ):
        assert line in out


def test_a_folder_that_is_no_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(make(tmp_path / "a", [make_row()], bare=True)), str(tmp_path)]) == 2
    assert "holds no claims.json" in capsys.readouterr().err
