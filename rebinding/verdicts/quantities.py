"""Quantities: the numbers that a reader of a verdict expects, each with its interval, and how all numbers are written.

A rule often judges a difference, such as accuracy above half way between two others. The quantities are what that
difference is made of. Their interval is that of the rules: two one-sided bounds at 5 %, 90 % together, over prompts, or
over draws crossed with prompts. Tables and figures use the same estimate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from rebinding.paper.claim import LEVEL
from rebinding.verdicts.estimates import Estimate, estimate
from rebinding.verdicts.outcome import Quantity, Verdict, finite_or_none

CONFIDENCE = 1 - 2 * LEVEL
"""Of the interval: its ends are the bounds of two one-sided tests."""
UNITS: Mapping[str, str] = MappingProxyType(
    {
        "accuracy": "of prompts", "switch": "of heads", "share": "of heads", "iia": "of prompts",
        "margin": "logits", "logit": "logits", "dlogit": "logits", "dR": "dR",
    }
)  # fmt: skip
"""The unit of a quantity, by its metric; dR, a change of a log ratio, has only its name."""
SHARES = ("accuracy", "iia", "switch", "share", "probability")
"""Metrics between 0 and 1."""
DECIMALS = 3
"""Of a quantity: its unit is a share, a logit or a log ratio, of which less means nothing."""
LEAST_P = 1e-4
"""Smaller p-values rest on tails that no sample supports."""


def interval_of(values: npt.ArrayLike, *, share: bool = False) -> tuple[Estimate, float, float]:
    """The estimate of a mean and the ends of its interval; values are (prompt,) or (draw, prompt). The interval of a
    share stays between 0 and 1."""
    sample = np.asarray(values)
    measurement = estimate(sample, unit="prompts" if sample.ndim == 1 else "nested")
    if share and not measurement.binary:
        measurement = replace(measurement, support=(0.0, 1.0))
    low, high = measurement.safe_bounds(CONFIDENCE)
    return measurement, float(low), float(high)


def with_quantities(verdict: Verdict, metric: str, samples: Mapping[str, npt.ArrayLike]) -> Verdict:
    """The verdict with the quantities of samples, by name: (prompt,) or (draw, prompt) each. None where a gate failed,
    or where numbers are not finite, which the rule refuses."""
    arrays = {name: np.asarray(values) for name, values in samples.items()}
    if not verdict.judged or not all(np.isfinite(values).all() for values in arrays.values()):
        return verdict
    return replace(verdict, quantities=tuple(_quantity(name, metric, values) for name, values in arrays.items()))


def _quantity(name: str, metric: str, values: npt.NDArray[np.generic]) -> Quantity:
    measurement, low, high = interval_of(values, share=metric in SHARES)
    mean, low, high = (float(f"{float(number):.6g}") for number in (measurement.mean, low, high))
    return Quantity(name, metric, mean, finite_or_none(low), finite_or_none(high), int(measurement.n))


def format_number(value: float | None) -> str:
    """A number with three digits and a real minus sign; nothing for None."""
    return "" if value is None else f"{value:.3g}".replace("-", "−")


def format_interval(low: float | None, high: float | None) -> str:
    """Both ends, in brackets; nothing if either is missing."""
    return "" if low is None or high is None else f"[{format_number(low)}, {format_number(high)}]"


def format_quantity(quantity: Quantity) -> str:
    """`circuit 0.95 of prompts [0.9, 0.98]`; adding zero makes -0 a 0."""
    low, high = (None if end is None else round(end, DECIMALS) + 0.0 for end in (quantity.low, quantity.high))
    number = f"{format_mean(quantity)} {UNITS.get(quantity.metric, '')}".rstrip()
    return f"{number} {format_interval(low, high)}".rstrip()


def format_mean(quantity: Quantity) -> str:
    """`circuit 0.95`."""
    return f"{quantity.name} {format_number(round(quantity.mean, DECIMALS) + 0.0)}"


def format_p_value(value: float) -> str:
    """`p = 0.013`; what is very small is only bounded."""
    return f"p < {LEAST_P:.4f}" if value < LEAST_P else f"p = {format_number(float(f'{value:.2g}'))}"
