"""Position-free discovery is not simulated."""

from __future__ import annotations

from rebinding.experiments.search.request import Crossings
from rebinding.experiments.simulation import leave_out

leave_out(Crossings, "ours; a world would have to say which of all heads and tokens a search finds")
