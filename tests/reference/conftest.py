"""The packs to compare with: the project's own, or those named with `--reference`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reference.pack import Pack

OWN = Path(__file__).parent / "llama-tiny"
DEVIATIONS: dict[str, float] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One round per pack."""
    if "pack" in metafunc.fixturenames:
        folders = [Path(name) for name in metafunc.config.getoption("--reference")] or [OWN]
        for folder in folders:
            if not (folder / "expected.json").is_file():
                raise pytest.UsageError(f"--reference {folder}: no expected.json there; name the folder of a pack")
        packs = [Pack(folder) for folder in folders]
        metafunc.parametrize("pack", packs, ids=[folder.name for folder in folders], scope="session")


@pytest.fixture(scope="session")
def deviations() -> dict[str, float]:
    """The largest deviation of each experiment, in units of the suggested tolerance; printed at the end."""
    return DEVIATIONS


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the largest deviation per experiment."""
    if DEVIATIONS:
        terminalreporter.section("largest deviation from the reference numbers, in units of their tolerance")
        for name, value in sorted(DEVIATIONS.items()):
            terminalreporter.write_line(f"{name:24} {value:.3g}")
