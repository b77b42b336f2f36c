"""The part of `rebinding report` that computes a sample of the evidence again: `--recheck N --model NAME`."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rebinding.evidence import Evidence, OnPrompts, Request
from rebinding.experiments.recheck import Compared, RecheckError, draw, is_comparable, most_false, recheck
from rebinding.experiments.workbench import Workbench
from rebinding.report.folder import ReportedModel, read
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings


@dataclass(frozen=True)
class RecheckOptions:
    """What is computed again: `n` rows of the model that `model` names, drawn by `seed`, or anew each time."""

    n: int
    model: str | None
    device: str
    seed: int | None


def run_recheck(folder: Path, options: RecheckOptions) -> int:
    """Compute the sample and print what came out; 1 if a row differs."""
    if options.n < 1:
        raise RecheckError(f"--recheck {options.n}: give the number of rows to compute again, at least 1")
    name = None if options.model is None else parse_model(options.model).name
    model = find_model(folder, name)
    dtype, evidence = str(model.about["dtype"]), model.evidence
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    drawn = draw(evidence, options.n, seed)
    bench_of = open_model(model, options.model or model.name, dtype, options.device)
    compared = []
    for result in recheck(evidence, drawn, dtype, bench_of):
        compared.append(result)
        if result.is_false:
            print(false_line(result), flush=True)
    print("\n".join(lines(model, compared, seed)))
    return 1 if any(result.is_false or result.part_false for result in compared) else 0


def find_model(folder: Path, name: str | None) -> ReportedModel:
    """The model of a report: the only one, whatever it is called here, or the one with this name or alias."""
    models = [model for model in read(folder).models if "fingerprint" in model.about]
    wanted = name if name is None else name.partition("=")[0]
    chosen = [model for model in models if len(models) == 1 or wanted in (model.name, model.about.get("alias"))]
    if len(chosen) != 1:
        names = ", ".join(model.name for model in models) or "no model with evidence"
        raise RecheckError(f"--model {name}: {folder} has {names}; name one of them")
    return chosen[0]


def open_model(model: ReportedModel, name: str, dtype: str, device: str) -> Callable[[Request], Workbench]:
    """The workbench of each request on the weights that the report names; other weights are refused."""
    spec = parse_model(name)
    case = ModelUnderTest(spec, Settings((spec,), dtype=None if spec.fixed_dtype else dtype, device=device))
    fingerprint = case.loaded_model.fingerprint
    if fingerprint != model.about["fingerprint"]:
        raise RecheckError(
            f"{name} has other weights, configuration or tokenizer than the model of the report (sha256"
            f" {fingerprint[:12]}, there {str(model.about['fingerprint'])[:12]}): its evidence cannot be compared"
        )

    def bench_of(request: Request) -> Workbench:
        boxes = request.prompts.boxes if isinstance(request, OnPrompts) else 3
        source = case.session_for(boxes).source
        assert isinstance(source, Workbench)
        return source

    return bench_of


def false_line(result: Compared) -> str:
    """A row that differs."""
    size = "another row" if math.isinf(result.worst) else f"{result.worst:.3g} times what rounding allows"
    return f"differs: row {result.drawn.row} of {result.drawn.name}: {size}"


def lines(model: ReportedModel, compared: list[Compared], seed: int) -> Iterator[str]:
    """What was compared, what differed, and what a sample of this size can say."""
    evidence = model.evidence
    comparable = {name: piece for name, piece in evidence.items() if is_comparable(piece)}
    total, false = _rows(comparable), sum(result.is_false for result in compared)
    pieces = {result.drawn.name for result in compared}
    yield (
        f"{model.name}: {len(compared)} of {total} rows, drawn with --seed {seed}, computed again; they are in"
        f" {len(pieces)} of {len(comparable)} files"
    )
    if len(comparable) < len(evidence):
        left_out = {name: piece for name, piece in evidence.items() if name not in comparable}
        yield f"not compared: {_rows(left_out)} rows of {len(left_out)} files, which are rounding or branch on it"
    worst = max((result.worst for result in compared if not result.is_false), default=0.0)
    others = max((result.part_false - result.is_false for result in compared), default=0)
    yield f"{false} differ; the others by at most {worst:.2g} of what rounding allows" + (
        f"; rows computed with them differ too, up to {others} of a prompt" if others else ""
    )
    yield (
        f"with 95 % confidence at most {most_false(false, len(compared)):.1%} of the rows are false: of more, 19 of 20"
        f" samples of {len(compared)} would have shown {'more than ' + str(false) if false else 'some'}"
    )
    yield "This says nothing about verdicts: `rebinding compare` sets them beside those of a run of your own."


def _rows(evidence: dict[str, Evidence]) -> int:
    return sum(len(piece.rows) for piece in evidence.values())
