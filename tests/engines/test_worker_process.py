"""A worker in a process of its own computes every kind of request from the task alone."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from rebinding.engines.worker import LoadOptions, Task
from rebinding.evidence import Evidence
from rebinding.evidence.store import Activations
from rebinding.experiments.prompts import Stories
from rebinding.experiments.table import experiment_of
from rebinding.models import load
from tests.engines.kinds import NAME, make_request

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
    assert module == "rebinding.experiments.circuit.measure"
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
