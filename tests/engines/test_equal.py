"""Workers compute what this process computes: shards, evidence and the table of the claims."""

from __future__ import annotations

import pickle
import platform
import re
import resource
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from rebinding.engines.distributed import DistributedEngine
from rebinding.engines.worker import LoadOptions, Task
from rebinding.evidence import Evidence
from rebinding.evidence.store import Activations, Store
from rebinding.experiments.prompts import Stories
from rebinding.experiments.table import EXPERIMENTS, experiment_of
from rebinding.experiments.workbench import Workbench
from rebinding.models import load
from tests.claims.run_claims import run
from tests.engines.kinds import KINDS, NAME, make_request
from tests.engines.local_pool import make_engine
from tests.everyday import sampled


@pytest.fixture(scope="module")
def local_bench(tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench that computes and stores."""
    loaded_model = load(NAME, device="cpu")
    return Workbench(loaded_model, Store(tmp_path_factory.mktemp("here")))


@pytest.fixture(scope="module")
def engine() -> DistributedEngine:
    return make_engine(2)[0]


@pytest.fixture(scope="module")
def worker_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store of the workers' evidence."""
    return Store(tmp_path_factory.mktemp("there"))


def measure(engine: DistributedEngine, name: str, store: Store | None) -> Evidence:
    """The evidence of one kind, as the result of a job."""

    def job() -> Evidence:
        session = engine.session(engine.loaded_model(NAME, dtype="float32", device="cpu", store=store), store)
        return session.source.get(make_request(name, session.prompts))

    return engine.finish(job)


def shards(store: Store) -> dict[str, bytes]:
    """The bytes of every shard."""
    return {f"{entry.experiment}/{entry.path.name}": entry.path.read_bytes() for entry in store.entries()}


def test_every_kind_has_a_request(local_bench: Workbench) -> None:
    kinds = {type(make_request(name, local_bench.prompts)) for name in KINDS}
    experiments = {entry.request for entry in EXPERIMENTS.values() if entry.makes == "evidence"}
    assert kinds == {kind for kind in experiments if kind.__module__.startswith("rebinding.")}


@pytest.mark.parametrize("name", sampled(KINDS, "answered", "paths", "ablation", "binding"))
def test_workers_and_this_process_keep_the_same_bytes(
    name: str, local_bench: Workbench, engine: DistributedEngine, worker_store: Store
) -> None:
    """It is the same computation, so the same bits; only the transport differs."""
    assert isinstance(local_bench.store, Store)
    local, before = local_bench.get(make_request(name, local_bench.prompts)), len(shards(worker_store))
    remote = measure(engine, name, worker_store)
    assert len(shards(worker_store)) > before
    assert shards(local_bench.store) == shards(worker_store)
    pd.testing.assert_frame_equal(local.rows, remote.rows, check_exact=True)
    assert local.settings == remote.settings


@pytest.mark.parametrize("name", sampled(["paths", "answered", "ablation"], "answered"))
def test_evidence_is_equal_without_a_store(name: str, local_bench: Workbench) -> None:
    remote = measure(make_engine()[0], name, None)
    pd.testing.assert_frame_equal(
        local_bench.get(make_request(name, local_bench.prompts)).rows, remote.rows, check_exact=True
    )


MODELS = ("--model", "planted:pointer@llama", "--model", "planted:lexical@llama")
SELECTION = ("--samples", "12", "-k", "D_q_C or b_moves_pointer or (q_strongest and not controlled)")
WORKERS = ("-p", "tests.engines.local_pool", "--engine", "ray")


def table(output: str) -> list[str]:
    """The lines of the claims with their numbers, and those about the model."""
    _, heading, summary = output.partition("= verdicts =")
    assert heading, output[-3000:]
    return [line for line in summary.splitlines() if line.startswith("  ")]


@pytest.mark.slow
def test_the_table_is_that_of_this_process(tmp_path: Path) -> None:
    local = run(*MODELS, *SELECTION, "--store", str(tmp_path / "own"))
    with_workers = run(*MODELS, *SELECTION, *WORKERS, "--store", str(tmp_path / "theirs"))
    assert len(table(local.stdout)) > 6
    assert table(local.stdout) == table(with_workers.stdout)
    (summary,) = re.findall(r"tasks (\d+), different (\d+), at the same time (\d+)", with_workers.stdout)
    tasks, different, maximum = map(int, summary)
    assert tasks == different > 10
    assert maximum == 2
    rerun = run(*MODELS, *SELECTION, *WORKERS, "--store", str(tmp_path / "own"))
    assert table(rerun.stdout) == table(local.stdout)
    assert "tasks 2, different 2" in rerun.stdout  # what the two models are; all evidence is there


def test_workers_are_refused_with_pytest_processes() -> None:
    result = run(*MODELS, *SELECTION, *WORKERS, "-n", "auto")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--numprocesses and --engine ray" in result.stderr


ROOT = Path(__file__).parents[2]
WORKER = """
import pickle, sys
from rebinding.engines.worker import Worker, pack

task = pickle.load(sys.stdin.buffer)
sys.stdout.buffer.write(pack(Worker().run_task(task, {})))
"""


@pytest.mark.slow
def test_worker_computes_in_a_fresh_process() -> None:
    """A kind whose measure is another kind's, registered in a second file; the means that it needs and did not get are
    returned too."""
    request = make_request("unswapped", Stories(load(NAME, device="cpu").encoder()))
    module = experiment_of(type(request)).run.__module__
    assert module == "rebinding.experiments.ablation"
    task = Task(LoadOptions(NAME, "float32", "cpu"), request, module, (request.KIND.name, "any"))
    result = subprocess.run(
        [sys.executable, "-c", WORKER], input=pickle.dumps(task), cwd=ROOT, capture_output=True, check=True
    )
    outcome = pickle.loads(result.stdout)
    assert isinstance(outcome, dict), outcome
    contents = {address[0]: content for address, content in outcome.items()}
    assert {name: type(content) for name, content in contents.items()} == {
        request.KIND.name: Evidence,
        request.means.KIND.name: Activations,
    }
    evidence = contents[request.KIND.name]
    assert isinstance(evidence, Evidence)
    assert evidence.settings["key"] == request.key


TIMES, BYTES = 8, 2**26
NO_HUGE_PAGES = 41
"""Of `prctl`: where the system gives huge pages unasked, there would be next to nothing to count."""
CODE = f"""
import ctypes, resource, sys, torch
from rebinding.engines.on_ray import keep_memory
if sys.platform == "linux":
    ctypes.CDLL(None).prctl({NO_HUGE_PAGES}, 1, 0, 0, 0)
if sys.argv[1] == "kept":
    keep_memory()
for _ in range(2):
    torch.ones({BYTES // 4})
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range({TIMES}):
    torch.ones({BYTES // 4})
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def count_new_pages(mode: str) -> int:
    """New pages of a process for tensors of the same size, one after the other."""
    process = subprocess.run([sys.executable, "-c", CODE, mode], capture_output=True, text=True, check=True)
    return int(process.stdout)


@pytest.mark.slow
def test_freed_memory_is_reused() -> None:
    """With glibc; other C libraries are not changed. A small block in between may cost one more allocation."""
    pages = TIMES * BYTES // resource.getpagesize()
    new_pages = count_new_pages("kept")
    if platform.libc_ver()[0] == "glibc":
        assert new_pages <= pages / 4
        assert count_new_pages("let go") > pages / 2  # else the test would show nothing
