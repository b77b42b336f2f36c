"""Two graphs beside each other: what is in both, what is not, how much it weighs, and whether prompts were shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rebinding.cli.commands import main
from rebinding.experiments.search import graph
from rebinding.experiments.search.graph import Edge, Graph, Node, compare
from rebinding.models import load
from rebinding.models.loaded_model import owner_of

COPY, MATCH, PAIR, FULL = (
    Node(9, 1, "readout"),
    Node(7, 2, "readout"),
    Node(5, 0, "question_box"),
    Node(3, 3, "swap_period"),
)


def arrow(sender: Node, receiver: Node | None, component: str, effect: float) -> Edge:
    return Edge(sender, receiver, component, effect, effect - 0.1, effect + 0.1)


FIRST_GRAPH = Graph(
    (COPY, MATCH, PAIR),
    (
        arrow(COPY, None, "direct", 4.0),
        arrow(MATCH, COPY, "q", 3.0),
        arrow(PAIR, MATCH, "v", -2.0),
        arrow(PAIR, MATCH, "k", 1.0),
    ),
    {"design": "counterbalanced", "skip_prompts": 0, "prompts": 36},
)
SECOND_GRAPH = Graph(
    (COPY, MATCH, FULL, PAIR),
    (
        arrow(COPY, None, "direct", 4.2),
        arrow(MATCH, COPY, "q", 2.9),
        arrow(PAIR, MATCH, "v", -2.0),
        arrow(FULL, COPY, "v", 0.9),
    ),
    {"design": "counterbalanced", "skip_prompts": 36, "prompts": 36},
)


def test_graphs_are_compared_by_edges_and_weights() -> None:
    """By hand: 9 of 10 logits here are in arrows of both, 9.1 of 10 there; another component is another arrow; of the
    three differences 0.2, 0.1 and 0 the one in the middle is 0.1. Correlation: 21.0 / sqrt(20.667 x 21.38)."""
    assert list(compare(FIRST_GRAPH, SECOND_GRAPH, "other.json")) == [
        "compared with other.json: found on 36 prompts, 0 of them among the 36 of this run",
        "  nodes: 3 in both, of 3 here and 4 there",
        "    there alone: 3.3 at swap_period",
        "  edges: 3 in both, of 4 here and 4 there",
        "    0.90 of all effects here is on shared edges; the rest begins with 5.0 at question_box to 7.2 at readout k"
        " +1.00",
        "    0.91 of all effects there is on shared edges; the rest begins with 3.3 at swap_period to 9.1 at readout v"
        " +0.90",
        "    their effects, here against there: correlation 0.999, half within 0.10",
    ]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"design": "counterbalanced", "skip_prompts": 24, "prompts": 24}, "12 of them among the 36 of this run"),
        ({"design": "published", "skip_prompts": 0, "prompts": 36}, "0 of them among"),
        ({}, "found on prompts that its file does not name"),
    ],
)
def test_shared_prompts_are_counted(settings: dict[str, Any], line: str) -> None:
    """The same ids under another design are other prompts."""
    assert line in next(compare(FIRST_GRAPH, replace(SECOND_GRAPH, settings=settings), "it"))


def test_a_graph_beside_itself_and_beside_nothing() -> None:
    lines = "\n".join(compare(FIRST_GRAPH, FIRST_GRAPH, "it"))
    assert "alone" not in lines
    assert "the rest" not in lines
    assert "1.00 of all effects there" in lines
    empty = list(compare(FIRST_GRAPH, Graph((), (), {}), "it"))
    assert "    0.00 of all effects here is on shared edges; the rest begins" in "\n".join(empty)
    assert "nan" not in "\n".join(empty)


@pytest.mark.slow
def test_compare_command_prints_the_differences(tmp_path: Path, capsys: Any) -> None:
    """A plant's graph on other prompts is the same one; another model's is refused before anything is searched."""
    loaded_model, name = load("planted:lexical@llama"), "planted:lexical@llama"
    command = [
        "discover",
        "--positions",
        "all",
        "--model",
        name,
        "--samples",
        "36",
        "--block",
        "36",
        "--store",
        str(tmp_path),
    ]
    assert main([*command, "--graph", str(tmp_path / "g.json")]) == 0
    assert main([*command, "--skip-prompts", "36", "--compare", str(tmp_path / "g.json")]) == 0
    output = capsys.readouterr().out
    assert "compared with g.json: found on 36 prompts, 0 of them among the 36 of this run" in output
    assert "1.00 of all effects here is on shared edges\n" in output
    graph.save(FIRST_GRAPH, replace(owner_of(loaded_model), fingerprint="0" * 64), tmp_path / "other.json")
    assert main([*command, "--minutes", "0", "--compare", str(tmp_path / "other.json")]) == 2
    assert "belongs to" in capsys.readouterr().err
