"""The figures of a circuit: its heads, each at its token, over layers."""

from __future__ import annotations

import matplotlib as mpl
from matplotlib.figure import Figure

from rebinding.experiments.circuit import summary
from rebinding.experiments.circuit.request import ABLATION, PRUNING
from rebinding.experiments.figure import FigureSpec, ReportedModel, shows
from rebinding.experiments.paths.request import PATHS
from rebinding.experiments.plots import DPI, LETTERING, OKABE_ITO, SMALLEST, readable
from rebinding.paper.circuit import Circuit, CircuitHead

GROUP_COLOURS = dict(
    zip("ABCDE", (OKABE_ITO[name] for name in ("vermillion", "blue", "green", "orange", "purple")), strict=True)
)
ROWS = (
    "context_partner",
    "context_asked",
    "swap_first",
    "swap_partner",
    "swap_second",
    "swap_asked",
    "swap_period",
    "question_box",
    "readout",
)
"""Roles from the beginning of a prompt to its end, so that information flows downwards and to the right."""


def draw_judged_circuit(model: ReportedModel) -> Figure | None:
    """The circuit under test."""
    heads = tuple(CircuitHead(*head) for head in model.about.get("circuit", []))
    return draw_circuit(Circuit(heads), int(model.about["layers"]), "the circuit under test") if heads else None


def draw_pruned_circuit(model: ReportedModel) -> Figure | None:
    """The discovered circuit after pruning in the published order."""
    pruning = model.find_largest_evidence(PRUNING)
    if pruning is None or "layers" not in model.about:
        return None
    circuit = summary.circuit_after_walk(pruning)
    return draw_circuit(circuit, int(model.about["layers"]), "discovered and pruned") if circuit.heads else None


def draw_circuit(circuit: Circuit, n_layers: int, name: str) -> Figure:
    """Rows are token positions, columns layers; a dot is a head, labelled with its number."""
    with mpl.rc_context(LETTERING):
        roles = [role for role in ROWS if any(head.role == role for head in circuit.heads)]
        roles = sorted({head.role for head in circuit.heads} - set(roles)) + roles
        stacks = _stacks(circuit)
        figure = Figure(
            figsize=(max(6.0, 1.5 + 0.28 * n_layers), 1.2 + 0.95 * max(len(roles), 1)), dpi=DPI, layout="constrained"
        )
        axes = figure.subplots()
        for row, role in enumerate(roles):
            axes.axhline(row, color="0.85", lw=1, zorder=0)
            for head in (head for head in circuit.heads if head.role == role):
                height = stacks[head] * 0.22
                axes.plot(head.layer, row - height, "o", ms=13, color=GROUP_COLOURS.get(head.group, "0.4"))
                axes.annotate(
                    str(head.head), (head.layer, row - height), ha="center", va="center", fontsize=SMALLEST, color="w"
                )
        axes.set_yticks(range(len(roles)), [_row_label(circuit, role) for role in roles])
        axes.set_ylim(len(roles) - 0.4, -0.9)
        axes.set_xlim(-0.7, n_layers - 0.3)
        axes.set_xlabel("layer")
        axes.set_title(f"{name}: {circuit.pairs} head-position pairs, {circuit.unique} heads", loc="left")
        return figure


def _stacks(circuit: Circuit) -> dict[CircuitHead, int]:
    """The height of each head above its row: heads of one role and layer are stacked."""
    counts: dict[tuple[str, int], int] = {}
    heights = {}
    for head in sorted(circuit.heads):
        place = (head.role, head.layer)
        heights[head] = counts.get(place, 0)
        counts[place] = heights[head] + 1
    return heights


def _row_label(circuit: Circuit, role: str) -> str:
    groups = "".join(sorted({head.group for head in circuit.heads if head.role == role and len(head.group) == 1}))
    return f"{readable(role)}  {groups}".rstrip()


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec(
        "circuit",
        "circuit",
        "Circuit under test",
        "Compare with the paper's circuit diagram.",
        "There, groups E to A stand at their tokens, and information goes down and to the right.",
        "Heads of the circuit: a row for each token, layers from left to right.",
        (shows(ABLATION, comparison="groups"), shows(PATHS)),
        draw_judged_circuit,
    ),
    FigureSpec(
        "pruned",
        "circuit",
        "Circuit discovered in this run, after pruning",
        "Compare with the paper's table of heads after pruning.",
        "",
        "Heads that path patching finds and pruning keeps: a row for each token, layers from left to right.",
        (shows(PRUNING), shows(ABLATION, comparison="heads")),
        draw_pruned_circuit,
    ),
)
