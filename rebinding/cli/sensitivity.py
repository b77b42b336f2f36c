"""`rebinding sensitivity`: which conclusions on a circuit depend on the ablation, the metric, and the prompts.

On stories of the box task, or on prompts of one's own, from a file of templates.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from rebinding.api.evaluation import AblationValue
from rebinding.api.model import Model, load
from rebinding.api.prompts import Prompts
from rebinding.api.sensitivity import SHARE, Sensitivity, sensitivity
from rebinding.cli.options import HELP, check_figure_file, check_input_file, check_number, check_output_file
from rebinding.experiments.metrics import Metric, accuracy, kl_divergence, logit_difference, probability
from rebinding.experiments.prompts import MOST_PROMPTS
from rebinding.models import origin
from rebinding.paper.circuit import Circuit
from rebinding.study.options import MODEL, declare
from rebinding.task.boxes import MAX_BOXES, MIN_BOXES
from rebinding.task.designs import design
from rebinding.task.prompts import PromptError
from rebinding.task.text import WORDINGS

METRICS: Mapping[str, Metric] = {
    "logit-difference": logit_difference,
    "probability": probability,
    "accuracy": accuracy,
    "kl-divergence": kl_divergence,
}
STORIES: Mapping[str, dict[str, Any]] = {
    "stories": {},
    "other words": {"split": "evaluation"},
    "with sentences between": {"narrative": True},
}
"""Sets of stories, the reference first: counterbalanced stories, by what differs. Models that are not planted get the
paraphrases as well."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME", help=MODEL)
    parser.add_argument(
        "--circuit", type=Path, required=True, metavar="FILE", help="the circuit, as discover --save writes it"
    )
    parser.add_argument(
        "--templates",
        type=Path,
        metavar="FILE",
        help="prompts of your own, a TOML file: tables with a template and answers, the reference first, and rows of"
        " words (default: stories of the box task)",
    )
    parser.add_argument("--samples", type=int, default=72, metavar="N", help="stories of a set (default 72)")
    parser.add_argument("--boxes", type=int, default=3, metavar="N", help=HELP["--boxes"])
    for name, choices in (("ablation", get_args(AblationValue)), ("metric", tuple(METRICS))):
        defaults = [choice for choice in choices if choice != "kl-divergence"]
        parser.add_argument(
            f"--{name}", action="append", choices=choices, help=f"repeatable (default: {', '.join(defaults)})"
        )
    parser.add_argument(
        "--share",
        type=float,
        default=SHARE,
        metavar="X",
        help=f"share of the loss without all heads that a circuit has to keep (default {SHARE})",
    )
    parser.add_argument("--draws", type=int, default=10, metavar="N", help="random circuits (default 10)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the table as CSV (default: not written)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the table (default: not drawn)")
    declare(parser.add_argument, "--dtype", "--device")


def run(options: argparse.Namespace) -> int:
    check_number("--samples", options.samples, minimum=1, maximum=MOST_PROMPTS)
    check_number("--boxes", options.boxes, minimum=MIN_BOXES, maximum=MAX_BOXES)
    check_input_file("--circuit", options.circuit)
    check_output_file("--table", options.table)
    check_figure_file("--figure", options.figure)
    content = None if options.templates is None else _read_templates(options.templates)
    model = load(options.model, dtype=options.dtype, device=options.device)
    circuit = model.load_circuit(options.circuit)
    if content is None:
        prompts, means = _stories(model, circuit, options.samples, options.boxes)
    else:
        prompts, means = {name: model.fill(**of_set) for name, of_set in content.items()}, {}
    result = sensitivity(
        model,
        circuit,
        prompts,
        means=means,
        ablations=options.ablation or get_args(AblationValue),
        metrics=[METRICS[name] for name in options.metric or ("logit-difference", "probability", "accuracy")],
        share=options.share,
        draws=options.draws,
    )
    print("\n".join(lines(result)))
    if options.table:
        result.table.to_csv(options.table, index=False)
    if options.figure:
        import matplotlib as mpl
        from matplotlib.figure import Figure

        from rebinding.api.plots import plot_sensitivity

        with mpl.rc_context({"font.size": 9}):
            figure = Figure(figsize=(8, 1.4 + 0.22 * len(result.table)), layout="constrained")
            plot_sensitivity(result, axes=figure.subplots())
            figure.savefig(options.figure)
    return 0


def lines(result: Sensitivity) -> list[str]:
    """The table as text, and a sentence on what flips."""
    columns = ["prompts", "ablation", "metric", "faithfulness", "low", "high", "random", "recovers", "stable"]
    table = result.table[[*columns, "beats_random", "flips"]]
    text = table.to_string(index=False, float_format="{:.2f}".format, na_rep="").splitlines()
    first, flips = result.table.iloc[0], len(result.flips)
    reference = f"{first['prompts']}, {first['ablation']}, {first['metric']}"
    return [*text, f"{flips} of {len(table)} lines flip a conclusion of the first ({reference})"]


def _stories(model: Model, circuit: Circuit, samples: int, boxes: int) -> tuple[dict[str, Prompts], dict[str, Prompts]]:
    """Sets of stories that have the circuit's roles, and the stories that means are over."""
    roles = list(dict.fromkeys(head.role for head in circuit.heads if "@" not in head.role))
    is_planted = origin(model.name).kind == "planted"
    wordings = [] if is_planted else [wording for wording in WORDINGS if wording != "published"]
    sets = {**STORIES, **{f'wording "{wording}"': {"wording": wording} for wording in wordings}}
    means = {
        name: model.stories(design("counterbalanced", boxes=boxes, tokenizer=model.tokenizer, **changes), samples)
        for name, changes in sets.items()
    }
    return {name: own.having(*roles) for name, own in means.items()}, means


def _read_templates(path: Path) -> dict[str, dict[str, Any]]:
    """What `Model.fill` takes for each template of a file; the rows of the file serve templates without their own."""
    check_input_file("--templates", path)
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PromptError(f"{path} is not TOML: {error}") from None
    rows, sets = content.pop("rows", None), dict[str, dict[str, Any]]()
    for name, own in content.items():
        is_template = own.keys() <= {"template", "answers", "rows"} if isinstance(own, dict) else False
        if not is_template or "template" not in own or (rows is None and "rows" not in own):
            raise PromptError(
                f"{path}: {name!r} has to be a table with a template, answers (templates, the right one first), and"
                " rows of words if the file has no [[rows]] for all templates"
            )
        sets[name] = {"rows": rows, "answers": None, **own}
    if not sets:
        raise PromptError(
            f"{path} has no template; write a table such as [original] with template = ... and answers = ..."
        )
    return sets
