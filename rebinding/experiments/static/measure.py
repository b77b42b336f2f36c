"""Measure the circuit for swaps in questions about unswapped boxes: an ablation like any other."""

from __future__ import annotations

from rebinding.experiments.circuit.measure import measure_ablation
from rebinding.experiments.static.request import UnswappedQuestions
from rebinding.experiments.workbench import measures

measures(UnswappedQuestions)(measure_ablation)
