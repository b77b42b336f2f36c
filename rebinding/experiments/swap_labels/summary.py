"""The effect of exchanged keys at the labels of a swap, by set of directions and unit.

dR is that of section 5 with a label in the place of a slot's tokens: R = ln(M_j + e) - ln(M_i + e), with M_k the
attention of a head on the label that names the box of slot k; it is computed by head and then averaged.
"""

from __future__ import annotations

import numpy as np

from rebinding.evidence import Evidence
from rebinding.experiments.binding.summary import EPS, Array, by_unit

CASE = ["prompt", "i", "j", "draw"]


def label_shift(evidence: Evidence, measure: str) -> Array:
    """`dR` or `dlogit`, (draw, unit); a unit is one example of every ordered pair of slots."""
    rows = evidence.rows
    mass = {name: np.log(rows[name] + EPS) for name in rows if str(name).startswith(("before_label", "after_label"))}
    ratio = {when: mass[f"{when}_label_j"] - mass[f"{when}_label_i"] for when in ("before", "after")}
    lead = {when: rows[f"{when}_logit_j"] - rows[f"{when}_logit_i"] for when in ratio}
    changes = {"dR": ratio["after"] - ratio["before"], "dlogit": lead["after"] - lead["before"]}
    table = rows[CASE].assign(**{measure: changes[measure]}).groupby(CASE, sort=False)[measure].mean()
    return by_unit(table.reset_index(), measure)
