"""Two workers on Ray against one, and what the driver costs: `python -m benchmarks.engines` (needs the extra `ray`).

Discovery, tracing maps and ablations of a plant, by one worker of one thread, and by two. Before the clock runs they
have done as much on other prompts, as in any hour but its first minute: models are loaded, and memory is had. Another
plant is given by `--model`. Beside the ratio stands the processor time of the driver a task, which no other load of the
machine changes, and with `--costs FILE` (from `pytest claims --cost --model NAME --report DIR`) what it comes to in the
run of that model, by the number of its tasks.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

from rebinding.engines.distributed import DistributedEngine
from rebinding.engines.on_ray import RayWorkerPool
from rebinding.engines.worker import Address, Task
from rebinding.evidence import Evidence
from rebinding.evidence.store import Activations
from rebinding.experiments.ablation import Comparison
from rebinding.experiments.circuit.request import request_ablation
from rebinding.experiments.paths.request import conventions_of_plant
from rebinding.experiments.paths.summary import discover_circuit
from rebinding.experiments.prompts import draw_noise_pairs
from rebinding.experiments.tracing.request import answered_ids, request_map
from rebinding.paper.circuit import Circuit
from rebinding.paper.procedure import builtin_procedure
from rebinding.planted import build, parse
from rebinding.study.engine import Session
from rebinding.study.model_under_test import PAPER
from rebinding.task.designs import DesignName, ModeName

NAME = "planted:pointer@gemma3"
ROLES = ("swap_first", "swap_second", "swap_period", "question_box", "readout")
MODES: tuple[ModeName, ...] = ("swap_only", "target_box")
Prompts: TypeAlias = tuple[DesignName, int | None]
BEFORE: Prompts = ("partner_second", 5000)
PROMPTS: Prompts = ("published", None)
"""Design and first id of pairs: what workers do before the clock runs, and what is timed; they share no prompt."""
HOUR = 3600.0


@dataclass(frozen=True)
class RunTimes:
    """A run: by the clock, the driver's own processor time, and how many tasks there were."""

    seconds: float
    driver: float
    tasks: int


def jobs(engine: DistributedEngine, name: str, n: int, prompts: Prompts) -> Iterator[Callable[[], object]]:
    """What is asked for, as claims would: each job in its own order, the jobs beside each other."""
    design, first = prompts
    heads = Circuit(build(parse(name)).circuit)

    @cache
    def session() -> Session:
        return engine.session(engine.loaded_model(name, dtype="float32", device="cpu", store=None), None)

    def discovery() -> object:
        conventions = conventions_of_plant(builtin_procedure("controlled").circuit, "controlled")
        return discover_circuit(
            draw_noise_pairs(session().prompts, conventions, n, first), conventions, session().source.get
        )

    def traced(mode: ModeName) -> Evidence:
        prompts, get_evidence, conventions = (
            session().prompts,
            session().source.get,
            builtin_procedure("published").tracing,
        )
        stories = prompts.design(design)
        ids = answered_ids(prompts, stories, mode, n, conventions, get_evidence)
        return get_evidence(request_map(prompts, stories, ids, mode, ROLES, conventions))

    def ablated(comparison: Comparison) -> Evidence:
        prompts = session().prompts
        request = request_ablation(prompts, heads, prompts.design(design), "published", n=n, comparison=comparison)
        return session().source.get(request)

    yield discovery
    yield from (partial(traced, mode) for mode in MODES)
    kinds: tuple[Comparison, ...] = ("groups", "heads", "random")
    yield from (partial(ablated, comparison) for comparison in kinds)


def time_run(name: str, workers: int, n: int) -> RunTimes:
    """All jobs, by so many workers of one thread."""
    import ray

    given_out: list[Task] = []

    class Counting(RayWorkerPool):
        def give(self, worker: int, task: Task, read: Callable[[Address], Activations]) -> None:
            given_out.append(task)
            super().give(worker, task, read)

    pool = Counting(ray, address=None, workers=workers, per_model=0, threads=1)
    engine = DistributedEngine(lambda: pool)
    try:
        engine.prepare(jobs(engine, name, n, BEFORE))
        given_out.clear()
        requests = list(jobs(engine, name, n, PROMPTS))
        clock, process_clock = time.perf_counter(), time.process_time()
        engine.prepare(requests)
        return RunTimes(time.perf_counter() - clock, time.process_time() - process_clock, len(given_out))
    finally:
        engine.close()


def count_tasks(costs: Path) -> int:
    """Tasks of a run on the first model of a cost.json: blocks of path patching, requests of other kinds."""
    lines = json.loads(costs.read_text(encoding="utf-8"))["models"][0]["lines"].values()
    return sum(line["blocks"] if line["name"].startswith(("paths", "link")) else 1 for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=PAPER["paths"], metavar="N", help="prompts (default 100)")
    parser.add_argument(
        "--costs", type=Path, metavar="FILE", help="cost.json of a model, for its number of tasks (default: not used)"
    )
    parser.add_argument("--model", default=NAME, metavar="PLANT", help=f"a plant (default {NAME})")
    options = parser.parse_args()
    name, n = options.model, options.samples
    single, two = time_run(name, 1, n), time_run(name, 2, n)
    print(f"{name}, {n} prompts, {single.tasks} tasks: one worker {single.seconds:.1f} s, two {two.seconds:.1f} s")
    print(f"two against one: {single.seconds / two.seconds:.2f}x")
    seconds_per_task = single.driver / single.tasks
    print(f"driver: {1000 * seconds_per_task:.0f} ms of processor time a task")
    if options.costs is not None:
        all_of_them = count_tasks(options.costs)
        print(f"{all_of_them} tasks of a model: {seconds_per_task * all_of_them / HOUR:.1%} of an hour")


if __name__ == "__main__":
    main()
