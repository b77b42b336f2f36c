"""The circuit for swaps in questions about unswapped boxes is not simulated."""

from __future__ import annotations

from rebinding.experiments.simulation import leave_out
from rebinding.experiments.static.request import OtherStories

leave_out(OtherStories, "ours; the paper says nothing of the circuit on stories without its swap")
