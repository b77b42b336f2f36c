"""Ratios in one run: every group names the alternative that it is measured against."""

from __future__ import annotations

from typing import Any

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Per group: time per unit of work, the ratio to the baseline, and how much of the allowed ratio that is."""
    session = getattr(config, "_benchmarksession", None)
    groups: dict[str, list[Any]] = {}
    for bench in getattr(session, "benchmarks", []):
        if bench.stats and "units" in bench.extra_info:
            groups.setdefault(bench.group, []).append(bench)
    if not groups:
        return
    terminalreporter.section("ratios: median time per unit of work against the group's baseline")
    for group, benches in groups.items():
        baseline = next((bench for bench in benches if bench.extra_info.get("baseline")), None)
        if baseline is None:  # it failed, or was not asked for
            terminalreporter.write_line(f"{group}: no baseline was run, so there are no ratios")
            continue
        base = baseline.stats.median / baseline.extra_info["units"]
        terminalreporter.write_line(f"{group}: baseline {baseline.name}, {base * 1e3:.3f} ms a unit")
        for bench in benches:
            if bench is not baseline:
                ratio = base / (bench.stats.median / bench.extra_info["units"])
                allowed = bench.extra_info.get("allowed")
                share = (
                    "" if allowed is None else f"   operations allow {allowed:7.1f}x   quotient {ratio / allowed:5.0%}"
                )
                terminalreporter.write_line(f"  {bench.name:60} {ratio:8.1f}x{share}")


@pytest.fixture(scope="session", autouse=True)
def _two_threads() -> None:
    """All benchmarks on two threads, as documented."""
    import torch

    torch.set_num_threads(2)
