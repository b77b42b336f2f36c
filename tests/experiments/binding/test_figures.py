"""Figures show the numbers of the evidence and of the paper, each in its place."""

from __future__ import annotations

import numpy as np

from rebinding.experiments.binding.conditions import PUBLISHED_CONDITIONS, QK, K, Q
from rebinding.experiments.binding.summary import summary
from rebinding.paper.numbers import number
from rebinding.report.figures.binding import PAPERS, head_figure, printed_table, table_figure
from rebinding.report.folder import printed_numbers
from tests.experiments.binding.setup import random_model


def test_table_figure_has_our_means_and_the_papers_values() -> None:
    """A mark of ours in every line of every panel, at the mean; one of the paper's where it prints a number."""
    evidence = random_model("llama").binding("published", PUBLISHED_CONDITIONS, n=2)
    printed = printed_table(printed_numbers({"alias": "gemma2-9b"}))
    assert printed["q", "dR"] == number("binding.q.dR@gemma2-9b").value
    means = summary(evidence)
    for axes, measure in zip(table_figure(evidence, printed=printed).axes, ("dR", "dlogit", "switch"), strict=True):
        dots = [line.lines[0].get_xdata()[0] for line in axes.containers]
        np.testing.assert_allclose(dots, means[measure], rtol=1e-6)
        diamonds = {line.get_ydata()[0]: line.get_xdata()[0] for line in axes.lines if line.get_color() == PAPERS}
        names = means["condition"].tolist()
        assert diamonds == {names.index(c): value for (c, m), value in printed.items() if m == measure and c in names}
        assert len(diamonds) == 6


def test_head_figure_has_every_head() -> None:
    bench = random_model("llama")
    figure = head_figure(bench.binding("published", (Q, K, QK), n=2))
    assert [len(axes.containers) for axes in figure.axes] == [len(bench.heads)] * 3
