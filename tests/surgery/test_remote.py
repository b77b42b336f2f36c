"""Remote traces: they run in another interpreter with a model and nnsight, but without this project."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from nnsight import TransformersModel
from nnsight.schema.request import RequestModel
from nnsight.tracing.backend import Backend
from nnsight.tracing.tracer import save
from nnsight.tracing.util import push
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from rebinding.models.reference import CELLS, Cell
from rebinding.surgery import attention as registered
from rebinding.surgery.derivation import derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.sites import Edit, NothingEdited, Read, SurgeryError
from tests.close import agree, is_changed
from tests.everyday import sampled
from tests.families.engines import make_batch
from tests.families.models import VOCABULARY, Family, RandomModel, changed, tiny, tokens

FAMILIES: tuple[Family, ...] = ("gemma2", "gemma3", "qwen3")
"""Soft caps; key norms on (row, head, position, head_dim); key norms on (row, position, head, head_dim)."""


class OtherMachine(Backend):
    """Carries a trace to another interpreter, as a file, and what it saved back."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process, self.folder = process, folder

    def __call__(self, tracer: Any) -> None:
        """Send the trace, wait, and put the saved values where the trace stands."""
        files = {"folder": str(self.folder), "trace": str(self.folder / "trace"), "answer": str(self.folder / "answer")}
        Path(files["trace"]).write_bytes(RequestModel.serialize(tracer))
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(files), file=self.process.stdin, flush=True)
        reply = self.process.stdout.readline().strip()
        if reply != "done":
            raise RuntimeError(f"the other interpreter failed:\n{json.loads(reply)}")
        values = torch.load(files["answer"], map_location="cpu", weights_only=True)  # as nnsight takes NDIF's answers
        for value in values.values():
            save(value)
        push(tracer.info.frame, values)


@pytest.fixture(scope="module")
def other_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """A fresh Python process that waits for traces, in its own folder."""
    folder = tmp_path_factory.mktemp("server")
    script = folder / "trace_server.py"
    script.write_text(Path(__file__).with_name("trace_server.py").read_text())
    command = [sys.executable, "-I", "-W", "ignore", str(script)]
    with subprocess.Popen(
        command, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        yield process
        process.kill()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer, because a pipeline wants one; nothing is tokenized."""
    words = {f"word{number}": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="word0")), unk_token="word0", eos_token="word1"
    )


def client(folder: Path, **options: Any) -> TransformersModel:
    """The model without weights, as a client of a server holds it."""
    return TransformersModel(str(folder), task="text-generation", tokenizer=make_tokenizer(), **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Family, Path]:
    """A folder with model and tokenizer for each family."""
    places: dict[Family, Path] = {}
    for family in FAMILIES:
        places[family] = tmp_path_factory.mktemp(family)
        tiny(family).save_pretrained(places[family])
        make_tokenizer().save_pretrained(places[family])
    return places


@pytest.fixture(scope="module")
def surgeons(
    folders: dict[Family, Path], other_interpreter: subprocess.Popen[str]
) -> dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]:
    """For each family a surgeon that works here and one whose traces run in the other interpreter."""
    pairs = {}
    for family, folder in folders.items():
        model = tiny(family)
        remote = client(folder, attn_implementation="eager")
        carrier = OtherMachine(other_interpreter, folder)
        assert all(weight.is_meta for weight in remote._module.parameters())
        local = NNsightSurgeon(model, derive(model))
        pairs[family] = local, NNsightSurgeon(remote, derive(remote._module), remote=carrier)
    return pairs


EVERYDAY = {
    "gemma2": (Cell("scores"), Cell("logits"), Cell("mlp_out", attention="frozen")),
    "gemma3": (Cell("resid"), Cell("k", "head"), Cell("z")),
    "qwen3": (Cell("q"), Cell("pattern"), Cell("v", "head")),
}
RUNS = sampled(
    [(family, cell) for family in FAMILIES for cell in CELLS],
    *((family, cell) for family, cells in EVERYDAY.items() for cell in cells),
)


@pytest.mark.parametrize("case", RUNS, ids=lambda case: " ".join(map(str, case)))
def test_a_serialised_trace_gives_the_same_numbers_remotely(
    case: tuple[Family, Cell], surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]
) -> None:
    """Every site can travel: the same edits return the same tensors, as the other interpreter rounds them."""
    (family, cell), (local, remote) = case, surgeons[case[0]]
    batch, recording = (
        make_batch(family, cell, is_windowed=False),
        local.record(RandomModel(family).prompts, keep={"z"}),
    )

    def run(surgeon: NNsightSurgeon, edits: Sequence[Edit]) -> list[Tensor]:
        return surgeon.run(recording, edits, batch.reads, source=batch.source, attention=cell.attention)

    actual = run(remote, batch.edits)
    assert all(agree(a, b) for a, b in zip(actual, run(local, batch.edits), strict=True))
    assert is_changed(actual[1], run(local, [])[1])


def test_a_remote_no_op_is_refused(surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]) -> None:
    """Whether a write changed a value is computed on the server, and raised here."""
    local, remote = surgeons["gemma2"]
    recording = local.record(tokens("gemma2"))
    (value,) = remote.run(recording, [], [Read("q", at=[7], head=[(1, 2)])])
    with pytest.raises(NothingEdited):
        remote.run(recording, [Edit("q", value, at=[7], head=[(1, 2)])], [Read("logits", at=[12])])


def test_a_remote_recording_equals_a_local_one(
    surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]],
) -> None:
    """Every layer's z and residual is returned."""
    local, remote = surgeons["gemma3"]
    actual = remote.record(tokens("gemma3"), keep=["z", "resid"])
    expected = local.record(tokens("gemma3"), keep=["z", "resid"])
    for site in ("z", "resid"):
        assert all(agree(a, b) for a, b in zip(actual.sites[site], expected.sites[site], strict=True))


def test_reduce_runs_locally(surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]) -> None:
    """`reduce` may use objects that cannot be serialised, and may keep state."""
    local, remote = surgeons["qwen3"]
    lock, names = threading.Lock(), []

    def reduce(values: Tensor, rows: Tensor) -> Tensor:
        with lock:
            names.append(rows)
        return values.amax(dim=-1)

    recording = local.record(tokens("qwen3"))
    read = Read("logits", at=[12], reduce=reduce)
    assert agree(remote.run(recording, [], [read])[0], local.run(recording, [], [read])[0])
    assert len(names) == 2


def test_a_remote_failure_is_raised_here(folders: dict[Family, Path], other_interpreter: subprocess.Popen[str]) -> None:
    """The server's message is in the error."""
    remote = client(folders["gemma2"], attn_implementation="eager")
    wrong = changed(derive(remote._module), n_heads=12, n_kv_heads=4)
    surgeon = NNsightSurgeon(remote, wrong, remote=OtherMachine(other_interpreter, folders["gemma2"]))
    with pytest.raises(RuntimeError, match="spread over devices"):
        surgeon.run(surgeon.record(tokens("gemma2")), [], [Read("pattern", at=[12], head=[(1, 0)])])


@pytest.mark.parametrize("implementation", ["sdpa", registered.NAME])
def test_attention_that_a_server_lacks_or_hides_is_refused(implementation: str, folders: dict[Family, Path]) -> None:
    """A server lacks functions registered here, and sdpa has no pattern. Both are refused before anything is sent."""
    registered.register()
    remote = client(folders["qwen3"], attn_implementation=implementation)
    with pytest.raises(SurgeryError, match=rf"attention '{implementation}'.*attn_implementation='eager'"):
        NNsightSurgeon(remote, derive(remote._module), remote=True)


def test_a_model_that_no_server_can_find_is_refused(folders: dict[Family, Path]) -> None:
    """Models built here, and models from folders, have no name on a server."""
    model = tiny("gemma2")
    with pytest.raises(SurgeryError, match=r"was built here.*Hub id"):
        NNsightSurgeon(model, derive(model), remote=True)
    loaded = AutoModelForCausalLM.from_pretrained(folders["gemma2"])
    with pytest.raises(SurgeryError, match=r"comes from the folder.*Hub id"):
        NNsightSurgeon(loaded, derive(loaded), remote=True)
