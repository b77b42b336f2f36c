"""The first day with the paper's models, rehearsed without weights: from no login to the report.

A Hub on this machine has the repositories under their real names, with random models of the same layers and heads. No
such model does the task, so every row ends as INVALID; what counts is what is said, kept and fetched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rebinding.models import ALIASES, build_shape
from rebinding.planted.tokenizer import build_tokenizer
from tests.rehearsal.local_hub import CHUNK, LocalHub

ROOT = Path(__file__).parents[2]
TOKEN = "hf_rehearsal"
MODEL = "llama3.2-3b"
MACHINE = ("-p", "tests.rehearsal.machine", "--device", "cpu")
PYTEST = ("pytest", "claims", *MACHINE, "-p", "no:cacheprovider")
JUDGE = ("rebinding", "judge", MODEL, "--samples", "6", *MACHINE)
REFUSED = pytest.ExitCode.USAGE_ERROR


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    code: int
    text: str


@dataclass(frozen=True)
class Day:
    """A machine with an empty cache, and the Hub that it reaches."""

    hub: LocalHub
    home: Path

    def run(self, *command: str, token: str | None = TOKEN, **variables: str) -> Outcome:
        """Run `python -m COMMAND` with this cache, store and login."""
        environment = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
        environment |= {"HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        environment |= variables if token is None else {**variables, "HF_TOKEN": token}
        words = [*command, "--store", str(self.home / "store"), "--report", str(self.home / "report")]
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout)

    def accept(self, *aliases: str) -> None:
        """Accept the licences of these models."""
        self.hub.accepted.setdefault(TOKEN, set()).update(map(hub_id, aliases))

    @property
    def weights_sent(self) -> int:
        """Bytes of weights that have left the Hub."""
        return sum(count for name, count in self.hub.sent.items() if name.endswith(".safetensors"))


def hub_id(alias: str) -> str:
    """The real name of a model's repository."""
    return ALIASES[alias].hub_id


def save_repository(alias: str, folder: Path) -> Path:
    """A random model of the layers and heads of a paper's model and next to no width, with the embedded tokenizer. Its
    weights are in several files."""
    tokenizer, narrow = build_tokenizer(), {"hidden_size": 96, "intermediate_size": 32, "head_dim": 4}
    model = build_shape(alias, dtype=torch.bfloat16, device=torch.device("cpu"), vocab_size=len(tokenizer), **narrow)
    model.save_pretrained(folder, max_shard_size="400KB")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The repositories, by their real names. Only one of them is judged every day; the others are refused before
    their weights matter, so a description is enough."""
    folder = tmp_path_factory.mktemp("repositories")
    names = {hub_id(alias): folder / alias for alias in ALIASES}
    save_repository(MODEL, names[hub_id(MODEL)])
    for alias in ALIASES:
        names[hub_id(alias)].mkdir(exist_ok=True)
    return names


@pytest.fixture
def day(folders: dict[str, Path], tmp_path: Path) -> Iterator[Day]:
    with LocalHub(folders, gated=frozenset(folders)).serve() as hub:
        yield Day(hub, tmp_path)


def shards(folder: Path) -> dict[str, int]:
    """The sizes of the files of weights, by name."""
    return {path.name: path.stat().st_size for path in sorted(folder.glob("*.safetensors"))}


def test_all_licences_are_named_before_anything_is_fetched(day: Day) -> None:
    outcome = day.run(*PYTEST, "-m", "gpu and headline", token=None)
    assert outcome.code == REFUSED, outcome.text
    for alias in ALIASES:
        assert f"open https://huggingface.co/{hub_id(alias)} and accept its licence" in outcome.text
    assert "hf auth login" in outcome.text
    assert {status for _, status in day.hub.refused} == {401}
    assert not day.hub.sent


def test_one_licence_that_is_missing_stops_the_run_before_weights_are_fetched(day: Day) -> None:
    day.accept(MODEL)
    outcome = day.run(*PYTEST, "-m", "headline", "--model", MODEL, "--model", "gemma2-9b")
    assert outcome.code == REFUSED, outcome.text
    assert "accept its licence, then log in on this machine" in outcome.text
    assert f"open https://huggingface.co/{hub_id('gemma2-9b')}" in outcome.text
    assert f"open https://huggingface.co/{hub_id(MODEL)}" not in outcome.text
    assert {status for _, status in day.hub.refused} == {403}
    assert day.weights_sent == 0


def test_from_the_first_word_to_the_report(day: Day, folders: dict[str, Path]) -> None:
    """The Hub goes away in the middle of the last shard: the client gives up after some attempts, and whole shards
    stay. The same command goes on; the client itself begins the cut shard again, and once a connection is cut it goes
    on there. The same command again fetches nothing and computes nothing."""
    day.accept(MODEL)
    sizes = shards(folders[hub_id(MODEL)])
    last = max(sizes)
    day.hub.cuts[last] = [10 * CHUNK] * 20
    stopped = day.run(*JUDGE)
    assert stopped.code == REFUSED, stopped.text
    assert stopped.text.index("to fetch: ") < stopped.text.index(f"{hub_id(MODEL)}, 1.96 MB in {len(sizes)} files")
    assert f"the time is not known: `pytest claims --cost --model {MODEL} --report DIR` counts it" in stopped.text
    assert "the Hub cannot be reached" in stopped.text
    assert "Traceback" not in stopped.text
    day.hub.cuts[last] = [20 * CHUNK]
    judged = day.run(*JUDGE)
    assert judged.code == 1, judged.text
    assert {name: day.hub.sent[name] for name in sizes} == {**sizes, last: sizes[last] + 10 * CHUNK}
    assert "nothing can be judged on this model" in judged.text
    assert json.loads((day.home / "report" / "claims.json").read_text())["remaining"] == 0
    assert (day.home / "report" / "index.html").is_file()
    day.hub.sent.clear()
    again = day.run(*JUDGE)
    assert again.code == 1
    assert "to fetch" not in again.text
    assert not day.hub.sent


@pytest.mark.slow
def test_the_whole_day(tmp_path: Path) -> None:
    """All rows on all four models, by the command of the README's page, after each refusal once."""
    folders = {hub_id(alias): save_repository(alias, tmp_path / "repositories" / alias) for alias in ALIASES}
    with LocalHub(folders, gated=frozenset(folders)).serve() as hub:
        day = Day(hub, tmp_path)
        assert day.run(*PYTEST, "-m", "gpu", token=None).code == REFUSED
        day.accept(*list(ALIASES)[:2])
        assert day.run(*PYTEST, "-m", "gpu").code == REFUSED
        assert day.weights_sent == 0
        day.accept(*ALIASES)
        names = Counter(name for folder in folders.values() for name in shards(folder))
        cut = next(name for name, count in names.items() if count == 1)
        hub.cuts[cut] = [10 * CHUNK]
        judged = day.run(*PYTEST, "-m", "gpu", "--samples", "6")
        assert judged.code == 1, judged.text
        sizes: Counter[str] = Counter()
        for folder in folders.values():
            sizes.update(shards(folder))
        assert {name: hub.sent[name] for name in sizes} == sizes, "each byte of each shard once"
        content = json.loads((day.home / "report" / "claims.json").read_text())
        assert content["remaining"] == 0
        assert {row["model"] for row in content["claims"]} >= set(ALIASES)
        assert judged.text.count("all headline rows are judged") == len(ALIASES)
        hub.sent.clear()
        assert day.run(*PYTEST, "-m", "gpu", "--samples", "6").code == 1
        assert not hub.sent, "nothing is fetched twice"


def test_a_disk_without_room(day: Day) -> None:
    day.accept(MODEL)
    outcome = day.run(*PYTEST, "--model", MODEL, "-m", "headline", FREE="1000000")
    assert outcome.code == REFUSED, outcome.text
    assert f"the weights of {hub_id(MODEL)} take 1.96 MB" in outcome.text
    assert "let HF_HOME be a folder on a larger disk" in outcome.text
    assert day.weights_sent == 0


@pytest.mark.slow
def test_a_revision_that_does_not_exist(day: Day) -> None:
    day.accept(MODEL)
    outcome = day.run("rebinding", "judge", f"{hub_id(MODEL)}@v9", "--device", "cpu")
    assert outcome.code == REFUSED, outcome.text
    assert f"{hub_id(MODEL)} exists but has no revision 'v9'" in outcome.text
