"""`python -m rebinding plan`: what judging a model takes, before anything is loaded."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator

from rebinding.rehearsal.plan import Device, Planned, plan
from rebinding.study.bench import MOST_PROMPTS
from rebinding.subjects import ALIASES
from rebinding.verbs.checks import check_number, check_positive

GB, TERA, PETA = 1e9, 1e12, 1e15


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, metavar="NAME", help="any model that claims take; all: the paper's four"
    )
    parser.add_argument("--gpu", default="80GB", metavar="SIZE", help="memory of one GPU (default 80GB)")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many there are (default 1)")
    parser.add_argument("--rate", type=float, default=400, metavar="TFLOP", help="TFLOP a second (default 400)")
    parser.add_argument("--bandwidth", type=float, default=3, metavar="TB", help="TB a second (default 3)")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of a prompt (default: the model's own)")
    parser.add_argument("--samples", type=int, metavar="N", help="prompts of every row, as in pytest claims")


def run(options: argparse.Namespace) -> int:
    check_number("--gpus", options.gpus, least=1)
    check_positive("--rate", options.rate)
    check_positive("--bandwidth", options.bandwidth)
    check_number("--tokens", options.tokens, least=1)
    check_number("--samples", options.samples, least=1, most=MOST_PROMPTS)
    device = Device(size_of(options.gpu), options.rate * TERA, options.bandwidth * TERA)
    names = tuple(ALIASES) if options.model == "all" else (options.model,)
    total = 0.0
    for name in names:
        found = plan(name, device, tokens=options.tokens, samples=options.samples, tick=_show)
        _show("")
        print("\n".join(told(found, device, options.gpus)), flush=True)
        total += found.seconds
    if len(names) > 1:
        print(f"pytest -m gpu, {len(names)} models one after the other: {total / 60:.0f} minutes at best")
    return 0


def _show(what: str) -> None:
    """What is rehearsed just now, on one line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r{what:70}\r", end="", file=sys.stderr)


def size_of(text: str) -> int:
    """Bytes: 80GB is 80 billion."""
    number = text.upper().removesuffix("GB")
    try:
        size = float(number)
    except ValueError:
        size = 0.0
    if not 0 < size < math.inf:
        raise ValueError(f"--gpu {text}: give a size in GB, such as 80GB")
    return int(size * GB)


def told(found: Planned, device: Device, gpus: int) -> Iterator[str]:
    """The table of a model, and what fits; a small model's work is told in TFLOP."""
    unit, size = ("PFLOP", PETA) if found.flop >= 10 * PETA else ("TFLOP", TERA)
    yield (
        f"{found.name}: prompts of {found.tokens} tokens, weights {found.weights / GB:.1f} GB; at "
        f"{device.rate / TERA:g} TFLOP/s and {device.bandwidth / TERA:g} TB/s"
    )
    if found.whose:
        yield f"its circuit is not known yet; this is with that of {found.whose}, at the same depths"
    yield f"  {'':42} {'N':>4} {'blocks':>6} {'rows':>7} {'GB':>6} {unit:>8} {'minutes':>8}"
    for line in found.lines:
        name = line.item.name + (f" (x{line.item.times})" if line.item.times > 1 else "")
        yield (
            f"  {name:42} {line.item.n:4} {line.item.blocks:6} {line.rows:7} {line.extra / GB:6.1f} "
            f"{line.flop / size:8.2f} {line.seconds / 60:8.1f}"
        )
    yield f"  {'all':42} {'':4} {'':6} {'':7} {'':6} {found.flop / size:8.2f} {found.seconds / 60:8.1f}"
    yield f"  {fitting(found, device, gpus)}"


def fitting(found: Planned, device: Device, gpus: int) -> str:
    """What fits and what does not, in a sentence."""
    most = f"{found.peak / GB:.0f} GB at the most, {(found.peak - found.weights) / GB:.0f} GB beside the weights"
    if found.peak <= device.memory:
        share = f"; {gpus} GPUs judge {gpus} models at a time" if gpus > 1 else ""
        return f"{most}: fits into one GPU of {device.memory / GB:g} GB{share}"
    needed = -(-found.peak // device.memory)
    if needed <= gpus:
        return (
            f"{most}: does not fit into one GPU of {device.memory / GB:g} GB; device_map='auto' spreads the layers "
            f"over {needed}, which compute one after the other, so the time is the same"
        )
    return f"{most}: does not fit into {gpus} GPUs of {device.memory / GB:g} GB; {needed} would do"
