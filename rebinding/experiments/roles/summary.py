"""From evidence of section 4.2 to the numbers that a rule weighs: one number per pair."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rebinding.evidence import Evidence
from rebinding.experiments.roles.interchange import group_effects

Array: TypeAlias = npt.NDArray[np.float64]


def of_group(evidence: Evidence, group: str, word: str) -> Array:
    """The change of a word's logit when a group gets the counterfactual's attention, by prompt."""
    table = group_effects(evidence)
    return table[table["group"] == group].sort_values("prompt")[word].to_numpy(dtype=np.float64)
