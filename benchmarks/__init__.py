"""Benchmarks: ratios against named alternatives, measured in one run."""

from __future__ import annotations

import math
from typing import Any


def median_seconds(benchmark: Any) -> float:
    """The median time of a benchmark that has run; NaN with --benchmark-disable, which times nothing."""
    return math.nan if benchmark.disabled else float(benchmark.stats.stats.median)
