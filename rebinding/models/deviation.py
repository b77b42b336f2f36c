"""Differences in units of the allowance.

A trained model has dimensions of the residual that are a thousand times larger than others and would hide any change.
So every dimension of a residual is divided by its size first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rebinding.models.rounding import Allowance, size
from rebinding.paper.certificate import LARGEST

FLOOR = 1e-3
"""Dimensions of the residual count as at least this share of their root mean square."""
MASKED = torch.finfo(torch.float16).min
"""Scores below this are masked."""


@dataclass(frozen=True, eq=False)
class Deviation:
    """The allowance of a model, and the size of every dimension of its residual (hidden,)."""

    allowance: Allowance
    scale: Tensor

    @classmethod
    def of_resid(cls, allowance: Allowance, resid: Tensor) -> Deviation:
        """Sizes as in an unedited residual (row, token, hidden)."""
        resid = resid.float()
        dimensions = resid.square().mean(dim=(0, 1)).sqrt()  # (hidden,)
        return cls(allowance, dimensions.clamp(min=FLOOR * size(resid)))

    def resids(self, actual: Tensor, expected: Tensor) -> tuple[int, float]:
        """The token at which two residuals (token, hidden) differ most, and the difference in allowances."""
        actual, expected = (value.to(self.scale.device).float() / self.scale for value in (actual, expected))
        return self.values(actual, expected)

    def values(self, actual: Tensor, expected: Tensor) -> tuple[int, float]:
        """The same for values ([head,] token, width) of any site."""
        expected = expected.float()
        off, typical = (
            value.square().movedim(-2, 0).flatten(1).mean(dim=1).sqrt()  # (token,)
            for value in (actual.to(expected) - expected, expected)
        )
        allowed = (self.allowance.relative * typical).clamp(min=torch.finfo(torch.float32).tiny)
        ratio = (off / allowed).nan_to_num(nan=LARGEST).clamp(max=LARGEST)  # (token,)
        return int(ratio.argmax()), float(ratio.max())

    def scores(self, actual: Tensor, expected: Tensor) -> tuple[int, float]:
        """The same for scores (head, query, key): masked ones do not count, but have to be masked in both."""
        actual = actual.to(expected)
        is_masked = expected < MASKED
        is_wrong = (actual < MASKED) != is_masked
        actual = actual.masked_fill(is_masked, 0.0).masked_fill(is_wrong, torch.inf)
        return self.values(actual, expected.masked_fill(is_masked, 0.0))
