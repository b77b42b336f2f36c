"""The circuit for swaps in questions about unswapped boxes is not simulated."""

from __future__ import annotations

from rebinding.experiments.simulation import leave_out
from rebinding.experiments.static.request import UnswappedQuestions

leave_out(UnswappedQuestions, "ours; the paper says nothing of the circuit on stories without its swap")
