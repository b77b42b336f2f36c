"""One block of each kind of request that a run of all claims makes: counted without a GPU, and by the clock on one.

    python -m benchmarks.agenda llama3.2-3b --save requests.pickle     collect the requests; takes minutes, needs no GPU
    python -m benchmarks.agenda llama3.2-3b --headline --save requests.pickle    the same of the headline rows alone
    python -m benchmarks.agenda llama3.2-3b --load requests.pickle     time them on a GPU

A run makes some hundred requests, many of which cost the same; `--cost` groups them (`rebinding.cost.table.grouped`).
The first block of a kind also pays for what the device does once (libraries, the allocator's first memory), so each is
run twice, and the second is the one that counts: all further blocks of a run are like it. `--most` leaves out kinds of
which a block would take longer than so many seconds at best.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.on_gpu import GB, PETA, called, ceiling, make_bench, measure_usage
from claims.catalogue import catalogue
from fixtures.cost import CostedModel
from rebinding.cost.blocks import CostedPart
from rebinding.cost.evidence import PassingGates
from rebinding.cost.source import CostEngine
from rebinding.cost.table import Accelerator, CostLine, grouped
from rebinding.evidence import Request
from rebinding.evidence.store import Activations
from rebinding.experiments.prompts import Stories
from rebinding.experiments.table import experiment_of
from rebinding.experiments.workbench import Workbench, tensor_requests
from rebinding.models import ALIASES
from rebinding.models.devices import check_dtype
from rebinding.study.gates import EvidenceLog
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study

H100 = Accelerator(memory=int(80e9), rate=4e14, bandwidth=3e12)
"""The device that `--cost` assumes."""


@dataclass(frozen=True)
class Kind:
    """Requests that cost the same: their number, the line of each, and the part of the first that is run."""

    count: int
    line: CostLine
    part: CostedPart


@dataclass(frozen=True)
class Agenda:
    """The kinds of request of a run on one model, and its prompts."""

    prompts: Stories
    kinds: tuple[Kind, ...]


def collect(alias: str, headline: bool) -> Agenda:
    """Run all claims, or those that a headline claim rests on, for their requests alone."""
    model, engine = parse_model(alias), CostEngine(H100)
    case, log = ModelUnderTest(model, Settings((model,), engine=engine)), EvidenceLog()
    costed = CostedModel(model, engine, case, Study.of(case, log, PassingGates))
    for row in catalogue():
        if headline and row.claim.headline is None:
            continue
        costed.cost(row.claim, row.test)
    source = costed.source
    key_of = {id(line): key for key, line in source.lines.items()}
    kinds = [Kind(count, line, source.parts[key_of[id(line)]]) for line, count in grouped([*source.lines.values()])]
    return Agenda(source.bench.prompts, tuple(kinds))


def run_block(bench: Workbench, request: Request) -> None:
    """Compute one block. The tensors that it needs are there already; no recording of an earlier block is."""
    surgeon = bench.surgeon
    surgeon.recordings.entries.clear()  # type: ignore[attr-defined]  # a torch surgeon
    experiment = experiment_of(type(request))
    if experiment.makes == "tensors":
        Activations(experiment.tensors(bench, request))
    else:
        experiment.evidence(bench, request)


def share_of(part: CostedPart) -> float:
    """The cost of the whole request as a multiple of its part's; less where `once` is a large share of the part."""
    return part.repeats * part.n / part.block


def times(bench: Workbench, kinds: Sequence[Kind], most: float) -> Iterator[str]:
    """A line for each kind, then the sums of all that were run, in minutes."""
    device = bench.loaded_model.device
    heads = f"{'first, s':>9} {'then, s':>8} {'GB':>6} {'blocks':>7} {'minutes':>8} {'at best':>8} {'launches':>9}"
    yield f"{'':52} {heads}"
    total, best = 0.0, 0.0
    for kind in kinds:
        line, part = kind.line, kind.part
        at_best = line.seconds * kind.count / 60
        if line.seconds / share_of(part) > most:
            yield f"{line.name:52} left out, {at_best:.1f} minutes at best"
            continue
        for needed in tensor_requests(part.request):
            if needed is not part.request:
                bench.tensors(needed)
        usages = []
        for _ in range(2):
            with measure_usage(device) as usage:
                run_block(bench, part.request)
            usages.append(usage)
        minutes = usages[1].seconds * share_of(part) * kind.count / 60
        total, best = total + minutes, best + at_best
        name = line.name + (f" (x{kind.count})" if kind.count > 1 else "")
        seconds = f"{usages[0].seconds:9.3f} {usages[1].seconds:8.3f} {usages[1].extra / GB:6.1f}"
        launches = line.launches / share_of(part)
        yield f"{name:52} {seconds} {line.blocks:7} {minutes:8.2f} {at_best:8.2f} {launches:9.0f}"
    yield f"{'all that were run':52} {'':9} {'':8} {'':6} {'':7} {total:8.2f} {best:8.2f}"


def counts(kinds: Sequence[Kind]) -> Iterator[str]:
    """A line for each kind: what is counted of one block without a device."""
    yield f"{'':52} {'N':>5} {'blocks':>7} {'rows':>7} {'launches':>9} {'GB moved':>9} {'PFLOP':>8}"
    for kind in kinds:
        line, share = kind.line, share_of(kind.part)
        name = line.name + (f" (x{kind.count})" if kind.count > 1 else "")
        block = f"{line.launches / share:9.0f} {line.bytes_moved / share / GB:9.1f} {line.flop / share / PETA:8.4f}"
        yield f"{name:52} {line.n:5} {line.blocks:7} {line.rows:7} {block}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alias", choices=ALIASES, help="model of the paper, e.g. gemma2-9b")
    parser.add_argument("--save", type=Path, metavar="FILE", help="collect the requests, count them, and stop there")
    parser.add_argument("--load", type=Path, metavar="FILE", help="the requests that --save collected")
    parser.add_argument("--headline", action="store_true", help="collect the requests of headline rows alone")
    parser.add_argument("--most", type=float, default=20.0, metavar="S", help="seconds of a block at best (default 20)")
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help="device of the model (default cuda)")
    parser.add_argument("--layers", type=int, metavar="N", help="layers, fewer than the shape has, for a trial")
    options = parser.parse_args()
    agenda: Agenda = (
        pickle.loads(options.load.read_bytes()) if options.load else collect(options.alias, options.headline)
    )
    if options.save:
        options.save.write_bytes(pickle.dumps(agenda))
        print("\n".join(counts(agenda.kinds)))
        return
    device = torch.device(options.device)
    made = make_bench(options.alias, check_dtype("bfloat16"), device, options.layers)
    bench = Workbench(made.loaded_model, prompts=agenda.prompts)
    rate = ceiling(bench.loaded_model.model.dtype, device) / 1e12
    print(f"{options.alias} on {called(device)}, torch {torch.__version__}; a matrix product: {rate:.0f} TFLOP/s")
    for line in times(bench, agenda.kinds, options.most):
        print(line, flush=True)


if __name__ == "__main__":
    main()
