"""Numbers for rules from evidence of attention: one per prompt."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from rebinding.evidence import Evidence

Array = npt.NDArray[np.float64]


def by_token(evidence: Evidence, column: str = "attention") -> Mapping[str, Array]:
    """The heads' mean attention on every token, by prompt: of unedited prompts, or `before` and `after` an edit."""
    means = evidence.rows.groupby(["token", "prompt"])[column].mean()
    return {str(name): means.loc[name].sort_index().to_numpy(np.float64) for name in means.index.unique("token")}


def even(evidence: Evidence) -> Array:
    """The share of every token if heads attend equally to all tokens, by prompt."""
    shares: Array = evidence.rows.groupby("prompt")["uniform"].first().sort_index().to_numpy(np.float64)
    return shares
