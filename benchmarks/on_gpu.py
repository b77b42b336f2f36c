"""The five stages of path patching in the paper's shapes with random weights on a GPU, by the clock, against the floor
that `benchmarks.counts` states.

    python -m benchmarks.on_gpu gemma3-12b

`benchmarks.agenda` times one block of each kind of request.

No weights are fetched and no claim is judged: times and memory hang on shapes. Not a test, since it needs a GPU (any
other device is taken with `--device`, and `--layers` makes a small model of a large one, to try the command).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.costs import minimum_cost
from benchmarks.counts import make_shape, pflop
from rebinding.cost.hollow_model import TOKENS, HollowModel
from rebinding.experiments.paths.request import STAGE_BY_NAME, request_paths
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.experiments.workbench import Workbench
from rebinding.models import ALIASES, build_shape
from rebinding.models.devices import Dtype, check_dtype, torch_dtype
from rebinding.models.loaded_model import form_for
from rebinding.models.names import origin
from rebinding.models.selfcheck import derive_checked
from rebinding.paper.circuit import Circuit
from rebinding.paper.numbers import circuit as published
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted.tokenizer import build_tokenizer

GB, PETA = 1e9, 1e15
SIDE = 8192
"""Of the square matrices whose product says what this device can do at best."""


@dataclass
class Usage:
    """What something took: seconds by the clock, and the most memory beside what is there when it ends."""

    seconds: float = 0.0
    extra: int = 0


@contextmanager
def measure_usage(device: torch.device) -> Iterator[Usage]:
    """The clock is read when the device has done what it was given."""
    usage, cuda = Usage(), device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    yield usage
    if cuda:
        torch.cuda.synchronize(device)
        usage.extra = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    usage.seconds = time.perf_counter() - start


def random_model(alias: str, dtype: Dtype, device: torch.device, layers: int | None) -> Any:
    """Random weights in the shape of an alias, of all its layers or of so many."""
    fewer = {} if layers is None else {"num_hidden_layers": layers}
    return build_shape(alias, dtype=torch_dtype(dtype), device=device, **fewer)


def called(device: torch.device) -> str:
    """A device, in words."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"


def make_bench(alias: str, dtype: Dtype, device: torch.device, layers: int | None) -> Workbench:
    """A bench on random weights, whose prompts are as long as with the model's own tokenizer."""
    model = random_model(alias, dtype, device, layers)
    name, tokenizer, tokens = f"shape:{alias}", build_tokenizer(), TOKENS[ALIASES[alias].form]
    form = form_for(name, origin(name), tokenizer)
    return Workbench(
        HollowModel(name, lambda: model, tokenizer, derive_checked(model), form, dtype, device, tokens=tokens)
    )


def ceiling(dtype: torch.dtype, device: torch.device) -> float:
    """FLOP a second of a large matrix product of random numbers, the median of ten."""
    side = SIDE if device.type == "cuda" else 512
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))  # (side, side)
    times = []
    for _ in range(13):
        with measure_usage(device) as usage:
            a @ b
        times.append(usage.seconds)
    return float(2 * side**3 / sorted(times[3:])[5])


def published_circuit(alias: str, bench: Workbench) -> Circuit:
    """The published groups; of a model cut short, heads of the same numbers in the layers that are left."""
    anatomy = bench.loaded_model.anatomy
    cut = (head._replace(layer=head.layer % anatomy.n_layers) for head in published(alias))
    return Circuit(tuple(dict.fromkeys(cut)))


def stages(alias: str, bench: Workbench, n: int, rate: float) -> Iterator[str]:
    """Every head as a sender of every stage; to the published groups, as `counts` has it."""
    heads, device = published_circuit(alias, bench), bench.loaded_model.device
    conventions = replace(builtin_procedure("published").circuit, noise=("independent",), frozen=("all",), scope="head")
    pairs = draw_noise_pairs(bench.prompts, conventions, n)
    first = bench.prompts.encode(pairs).prompts[0]
    shape = replace(make_shape(alias, len(first.ids)), layers=bench.loaded_model.anatomy.n_layers)
    yield f"{n} prompts of {len(first.ids)} tokens; a matrix product reaches {rate / 1e12:.0f} TFLOP/s"
    yield f"{'stage':8} {'seconds':>8} {'PFLOP at least':>15} {'floor, s':>9} {'x floor':>8} {'GB':>6}"
    sums = [0.0, 0.0]
    for name in "ABCDE":
        stage = STAGE_BY_NAME[name]
        receivers = heads.group(stage.receivers) if stage.receivers else ()
        if stage.receivers and not receivers:
            yield f"{name:8} nothing to send to: group {stage.receivers} is empty"
            continue
        with measure_usage(device) as usage:
            evidence = bench.get(request_paths(pairs, stage, receivers, conventions))
        if evidence.rows.empty:
            raise RuntimeError(f"stage {name} measured nothing")
        floor = pflop(minimum_cost(shape, stage, first.roles, receivers, frozen=True)) * n / 100
        sums = [sums[0] + usage.seconds, sums[1] + floor]
        yield _line(name, usage.seconds, floor, rate, usage.extra)
    yield _line("all", sums[0], sums[1], rate, 0)


def _line(name: str, seconds: float, floor: float, rate: float, extra: int) -> str:
    at_best = floor * PETA / rate
    return f"{name:8} {seconds:8.1f} {floor:15.2f} {at_best:9.1f} {seconds / at_best:8.1f} {extra / GB:6.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alias", choices=ALIASES, help="model of the paper, e.g. gemma2-9b")
    parser.add_argument("--prompts", type=int, default=100, metavar="N", help="prompts of the stages (default 100)")
    parser.add_argument("--dtype", default="bfloat16", metavar="DTYPE", help="number format (default bfloat16)")
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help="device of the model (default cuda)")
    parser.add_argument(
        "--layers", type=int, metavar="N", help="layers, fewer than the shape has, for a trial (default: all)"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    with measure_usage(device) as usage:
        bench = make_bench(options.alias, check_dtype(options.dtype), device, options.layers)
        _ = bench.surgeon
    place = called(device)
    print(f"{options.alias}, {options.dtype}, on {place}, torch {torch.__version__}; made in {usage.seconds:.1f} s")
    rate = ceiling(bench.loaded_model.model.dtype, device)
    for line in stages(options.alias, bench, options.prompts, rate):
        print(line, flush=True)


if __name__ == "__main__":
    main()
