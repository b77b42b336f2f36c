"""From the evidence to numbers that a rule weighs: one per prompt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rebinding.evidence import Evidence

Array = npt.NDArray[np.float64]


def by_token(evidence: Evidence) -> Mapping[str, Array]:
    """The heads' mean attention on every token, by prompt."""
    means = evidence.rows.groupby(["token", "prompt"])["attention"].mean()
    return {str(name): means.loc[name].sort_index().to_numpy(np.float64) for name in means.index.unique("token")}


def even(evidence: Evidence) -> Array:
    """What every token would get from heads that look at all tokens alike, by prompt."""
    found: Array = evidence.rows.groupby("prompt")["uniform"].first().sort_index().to_numpy(np.float64)
    return found
