"""How long the same two stages take in each library: `python -m peers.times`.

Processor seconds on one thread, so that what else runs on the machine counts for little. Model and size of prompts are
those of `benchmarks/model.py`. Another library takes as long for one sender as for the next, so a few are run and the
time is multiplied; ours runs all 144. Every library is timed in turn, three times over, and the median is told.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from statistics import median
from time import process_time

import torch

from benchmarks.model import HEADS, LAYERS, TOKENS, VOCABULARY, benchmark_model
from peers.forwards import PEERS
from peers.ours import make_pairs, make_task, measure_effects
from peers.stages import stacked, stage
from rebinding.paper.circuit import Head
from rebinding.paper.numbers import Group
from rebinding.surgery import TorchSurgeon, derive

PROMPTS, ROUNDS = 16, 3
SENDERS = [(6, 1), (6, 2)]
RECEIVERS: dict[Group, list[Head]] = {"A": [], "B": [(9, 2), (9, 11), (10, 3), (10, 7), (11, 5), (11, 8)]}


def seconds(work: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = process_time()
    work()
    return process_time() - start


def main() -> None:
    """A line per library and stage: seconds for all senders, and how many times ours."""
    torch.set_num_threads(1)
    model = benchmark_model()
    surgeon = TorchSurgeon(model, derive(model))
    scene = make_pairs(surgeon, prompts=PROMPTS, tokens=TOKENS, vocabulary=VOCABULARY)
    task, forwards = make_task(surgeon, scene), {name: make(model) for name, make in PEERS.items()}
    all_heads = LAYERS * HEADS
    print(", ".join(f"{name} {version(name)}" for name in ("torch", "transformer-lens", "pyvene", "nnsight")))
    for group, receivers in RECEIVERS.items():
        runs: dict[str, Callable[[], object]] = {
            "ours": partial(measure_effects, surgeon, scene, group, None, receivers)
        }
        for name, forward in forwards.items():
            runs[name] = partial(stage, forward, task, SENDERS, receivers)
        runs["nnsight, stacked"] = partial(stacked, forwards["nnsight"], task, SENDERS, receivers)
        seconds_by_name: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(ROUNDS):
            for name, work in runs.items():
                seconds_by_name[name].append(seconds(work) * (1 if name == "ours" else all_heads / len(SENDERS)))
        best = median(seconds_by_name["ours"])
        for name, times in seconds_by_name.items():
            print(f"stage {group}  {name:18} {median(times):8.1f} s  {median(times) / best:6.1f} x", flush=True)


if __name__ == "__main__":
    main()
