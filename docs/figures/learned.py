"""Draw the signatures of the learned models and print the table of their headline rows, from a report.

`python docs/figures/learned.py REPORT docs/figures`, where REPORT is the folder that `tox -e learned` writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import matplotlib as mpl
from matplotlib.figure import Figure

from rebinding.evidence import Evidence
from rebinding.experiments.binding.request import BINDING
from rebinding.experiments.binding.summary import per_example
from rebinding.learned.shelf import parse
from rebinding.report.figures.binding import dot
from rebinding.report.figures.figure import DPI, LETTERING, OKABE_ITO
from rebinding.report.folder import ReportedModel, ReportedRun, read
from rebinding.verdicts.judgement import RUN, Judgement

SHIFTS = {"q": ("query", "blue"), "k_both": ("keys", "vermillion"), "qk": ("both", "black")}
"""The conditions that make a signature, with their names and colours."""
VARIATIONS = ("published", "controlled")
WORDS: Mapping[str, str] = MappingProxyType(
    {"REPLICATED": "yes", "NOT REPLICATED": "no", "INCONCLUSIVE": "open", "INVALID": "invalid"}
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw the figure, write it, print where, and print the table."""
    parser = argparse.ArgumentParser(description="the figure and the table of the learned models")
    parser.add_argument("report", type=Path, help="the folder of a report")
    parser.add_argument("folder", type=Path, help="where the picture goes")
    options = parser.parse_args(arguments)
    run = read(options.report)
    path = options.folder / "learned-signatures.png"
    signature_figure(learned(run)).savefig(path, dpi=DPI, bbox_inches="tight")
    print(path, *table(run), sep="\n")


def learned(run: ReportedRun) -> list[ReportedModel]:
    """The models of a run, without the run itself, which has rows of its own."""
    return [model for model in run.models if model.name != RUN]


def short_name(model: str) -> str:
    """`learned:smollm2?seed=0&order=all` as `smollm2-all-0`."""
    return parse(model).folder_name


@mpl.rc_context(LETTERING)
def signature_figure(models: Sequence[ReportedModel]) -> Figure:
    """A line per model, a panel per procedure: how far each shift turns the attention of group B, in nats."""
    figure = Figure(figsize=(9, 0.8 + 0.5 * len(models)), layout="constrained")
    for axes, variation in zip(figure.subplots(1, len(VARIATIONS), sharey=True), VARIATIONS, strict=True):
        for line, model in enumerate(models):
            evidence = find_binding(model, variation)
            if evidence is None:
                axes.text(0, line, "no group B", va="center", color=OKABE_ITO["black"])
                continue
            examples = per_example(evidence)
            for place, (condition, (name, colour)) in enumerate(SHIFTS.items()):
                of_condition = examples[examples["condition"] == condition]
                label = name if line == 0 else None
                dot(axes, of_condition, "dR", line + 0.22 * (place - 1), OKABE_ITO[colour], label=label)
        axes.axvline(0, color=OKABE_ITO["black"], linewidth=0.8)
        axes.set_yticks(range(len(models)), [short_name(model.name) for model in models])
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_title(variation)
    axes.legend(loc="best")
    figure.supxlabel("change of the log attention ratio toward slot j, mean with 95 % interval")
    return figure


def find_binding(model: ReportedModel, variation: str) -> Evidence | None:
    """The evidence of the shifts on group B, at the token that the released code reads."""
    return model.find_largest_evidence(BINDING, variation=variation, cut=None)


def table(run: ReportedRun) -> Iterator[str]:
    """A Markdown table: a line per headline row, a column per model; below it the rows about the run as a whole."""
    names = [model.name for model in learned(run)]
    rows = {(row.model, row.id): row for row in run.claims if row.headline is not None}
    yield "| row | " + " | ".join(f"`{short_name(name)}`" for name in names) + " |"
    yield "|---" * (len(names) + 1) + "|"
    for claim in dict.fromkeys(row.id for row in run.claims if row.headline is not None and row.model in names):
        yield f"| `{claim}` | " + " | ".join(cell(rows.get((name, claim))) for name in names) + " |"
    for row in run.claims:
        if row.model not in names:
            yield f"`{row.id}`: {row.verdict}; {row.reason}"


def cell(row: Judgement | None) -> str:
    """A verdict in one word, and its estimate, or the gate that failed."""
    if row is None:
        return ""
    word = WORDS.get(row.verdict, row.verdict.lower())
    detail = f" ({row.gate})" if row.gate else "" if row.measured is None else f" {row.measured:.2g}"
    return word + detail


if __name__ == "__main__":
    main()
