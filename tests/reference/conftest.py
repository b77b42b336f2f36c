"""The packs to compare with: the shown one and one that is made on the spot, or those named with `--reference`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.reference.make_pack import make
from tests.reference.pack import SAMPLE_PACK, Agrees, Pack, deviation

DEVIATIONS: dict[str, float] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One round per pack."""
    if "pack" in metafunc.fixturenames:
        folders = [Path(name) for name in metafunc.config.getoption("--reference")]
        for folder in folders:
            if not (folder / "expected.json").is_file():
                raise pytest.UsageError(f"--reference {folder}: no expected.json there; name the folder of a pack")
        packs: list[Path | None] = [*folders] or [SAMPLE_PACK, None]
        names = [folder.name if folder else "made" for folder in packs]
        metafunc.parametrize("pack", packs, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def built_pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack that differs from the shown one in what its format leaves open."""
    return make(tmp_path_factory.mktemp("packs") / "made")


@pytest.fixture(scope="session")
def pack(request: pytest.FixtureRequest) -> Pack:
    """The pack of this round; made when it is first asked for, where no folder is named."""
    return Pack(request.param or request.getfixturevalue("built_pack"))


@pytest.fixture(scope="session")
def agrees() -> Agrees:
    """Holds numbers against the pack's within its tolerance. The largest deviation of each experiment, in units of
    that tolerance, is printed at the end."""

    def agrees(experiment: str, actual: Any, expected: Any, *, parts: int = 1, absolute: float | None = None) -> None:
        distance = deviation(actual, expected, absolute) / parts
        DEVIATIONS[experiment] = max(DEVIATIONS.get(experiment, 0.0), distance)
        assert distance <= 1

    return agrees


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the largest deviation per experiment."""
    if DEVIATIONS:
        terminalreporter.section("largest deviation from the reference numbers, in units of their tolerance")
        for name, value in sorted(DEVIATIONS.items()):
            terminalreporter.write_line(f"{name:24} {value:.3g}")
