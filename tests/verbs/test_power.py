"""`power`: numbers and rows that cannot be are refused before a process starts."""

from __future__ import annotations

import pytest

from rebinding.verbs.verbs import main


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--runs", "0"), "--runs 0: give 1 or more"),
        (("--jobs", "0"), "--jobs 0: give 1 or more"),
        (("--jobs", "-2"), "--jobs -2: give 1 or more"),
        (("--row", "nowhere"), "'nowhere'"),
    ],
)
def test_bad_options(
    given: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rebinding.verbs.power._each", lambda *_: pytest.fail("processes have started"))
    assert main(["power", *given]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert shown.out == ""
