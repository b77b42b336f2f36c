"""Two versions on one store, one after the other and at once; and a clock that is set back while a run goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from itertools import count
from pathlib import Path

import pytest

from rebinding.evidence.store import Store, library_versions
from rebinding.experiments import workbench
from rebinding.experiments.tracing.request import Answered
from rebinding.experiments.workbench import Workbench
from tests.oracles.faults import small_run
from tests.oracles.faults.stores import content
from tests.oracles.faults.toy_run import BLOCKS, blocks

ROOT = Path(__file__).parents[3]
SMALL_N = 3


@pytest.fixture(autouse=True)
def forget_versions() -> Iterator[None]:
    """The versions of libraries are read once in a process."""
    yield
    library_versions.cache_clear()


def other_torch(name: str) -> str:
    return "1.0" if name == "torch" else metadata.metadata(name)["Version"]


def test_each_version_has_shards_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither reads what the other wrote, neither disturbs it, and none is told of damage (warnings are errors)."""
    first, yours, shared = (tmp_path / name for name in ("mine", "yours", "both"))
    blocks(first, SMALL_N)
    blocks(shared, SMALL_N)
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", other_torch)
        library_versions.cache_clear()
        computed: list[int] = []
        blocks(shared, SMALL_N, computed)
        blocks(yours, SMALL_N)
        assert computed == list(range(SMALL_N))
    library_versions.cache_clear()
    assert not content(first).keys() & content(yours).keys()
    assert content(shared) == content(first) | content(yours)
    computed = []
    blocks(shared, SMALL_N, computed)
    assert computed == []


RUN = """
import sys
from importlib import metadata
from pathlib import Path
from tests.oracles.faults.toy_run import blocks

real = metadata.version
metadata.version = lambda name: sys.argv[2] if name == "torch" else real(name)
input()
computed = []
blocks(Path(sys.argv[1]), computed=computed)
print(len(computed))
"""


@pytest.mark.slow
def test_two_versions_at_once(tmp_path: Path) -> None:
    """Each computes all of its own, once, and the store holds what each alone would have left."""
    versions = ("1.0", "2.0")

    def run(places: Callable[[str], Path]) -> list[str]:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", RUN, str(places(version)), version],
                cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for version in versions
        ]  # fmt: skip
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        return [process.communicate()[0].strip() for process in processes]

    assert run(lambda version: tmp_path / "both") == [str(BLOCKS)] * 2
    assert run(lambda version: tmp_path / version) == [str(BLOCKS)] * 2
    assert content(tmp_path / "both") == content(tmp_path / "1.0") | content(tmp_path / "2.0")


def run_in_blocks(root: Path) -> None:
    """A request of a planted model in three blocks, each a shard."""
    settings, _ = small_run.plan()
    loaded_model, prompts = small_run.loaded_model(), settings.prompts
    bench = Workbench(loaded_model, Store(root), prompts=prompts)
    prompt_set = prompts.draw(prompts.design("published"), range(45), ("tracing", "swap_only"))
    bench.get(Answered(prompt_set, "continuation"))
    assert len(list(Store(root).entries())) == 3


def test_a_clock_that_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour back at every look, with the bar that tells the remaining time: the bytes of any other run."""
    run_in_blocks(tmp_path / "whole")
    looks, bar = count(4_000_000_000, -3600), workbench.tqdm
    for name in ("time.time", "tqdm.std.time"):
        monkeypatch.setattr(name, lambda: float(next(looks)))
    monkeypatch.setattr(workbench, "tqdm", lambda **options: bar(**{**options, "disable": False}))
    run_in_blocks(tmp_path / "store")
    assert next(looks) <= 4_000_000_000 - 2 * 3600, "nobody has looked at the clock twice"
    assert content(tmp_path / "store") == content(tmp_path / "whole")
    assert all(entry.written > 0 for entry in Store(tmp_path / "store").entries())
