"""Traces that leave this process: they run in another interpreter with a model and nnsight, but not this project."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
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

from rebinding.surgery import attention as registered
from rebinding.surgery.anatomy import derive
from rebinding.surgery.checks import NothingEdited, SurgeryError
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.surgery.sites import Edit, Read
from tests.close import agree, felt
from tests.surgery.cases import CELLS, LENGTH, SOURCE, Cell, edits_of, reads_of
from tests.surgery.models import VOCABULARY, Family, tiny, tokens

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
    """A fresh Python that waits for traces, in a folder of its own."""
    folder = tmp_path_factory.mktemp("elsewhere")
    script = folder / "elsewhere.py"
    script.write_text(Path(__file__).with_name("elsewhere.py").read_text())
    command = [sys.executable, "-I", "-W", "ignore", str(script)]
    with subprocess.Popen(
        command, cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        yield process
        process.kill()


def some_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer, because a pipeline wants one; nothing is tokenized."""
    words = {f"word{number}": number for number in range(VOCABULARY)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="word0")), unk_token="word0", eos_token="word1"
    )


def client(folder: Path, **options: Any) -> TransformersModel:
    """The model without weights, as somebody holds it who runs it elsewhere."""
    return TransformersModel(str(folder), task="text-generation", tokenizer=some_tokenizer(), **options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Family, Path]:
    """A folder with model and tokenizer for each family."""
    places: dict[Family, Path] = {}
    for family in FAMILIES:
        places[family] = tmp_path_factory.mktemp(family)
        tiny(family).save_pretrained(places[family])
        some_tokenizer().save_pretrained(places[family])
    return places


@pytest.fixture(scope="module")
def surgeons(
    folders: dict[Family, Path], other_interpreter: subprocess.Popen[str]
) -> dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]:
    """For each family a surgeon that works here and one whose traces run in the other interpreter."""
    pairs = {}
    for family, folder in folders.items():
        model = tiny(family)
        away = client(folder, attn_implementation="eager")
        carrier = OtherMachine(other_interpreter, folder)
        assert all(weight.is_meta for weight in away._module.parameters())
        here = NNsightSurgeon(model, derive(model))
        pairs[family] = here, NNsightSurgeon(away, derive(away._module), remote=carrier)
    return pairs


@pytest.mark.parametrize("cell", CELLS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_serialised_trace_gives_the_same_numbers_elsewhere(
    family: Family, cell: Cell, surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]
) -> None:
    """Every site can travel: the same edits return the same tensors, as the other interpreter rounds them."""
    here, away = surgeons[family]
    prompts = tokens(family, length=LENGTH)
    recording = here.record(prompts, keep={"z"})
    edits, reads = edits_of(cell, "set"), reads_of(cell)
    found = away.run(recording, edits, reads, source=SOURCE, attention=cell.attention)
    wanted = here.run(recording, edits, reads, source=SOURCE, attention=cell.attention)
    clean = here.run(recording, [], reads, source=SOURCE, attention=cell.attention)
    assert all(agree(one, other) for one, other in zip(found, wanted, strict=True))
    assert felt(found[-1], clean[-1])


def test_nothing_edited_is_noticed_from_afar(surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]) -> None:
    """Whether a write changed a value is found out where the model is, and raised here."""
    here, away = surgeons["gemma2"]
    recording = here.record(tokens("gemma2"))
    (value,) = away.run(recording, [], [Read("q", 1, heads=[2], positions=[7])])
    with pytest.raises(NothingEdited):
        away.run(recording, [Edit("q", 1, value, heads=[2], positions=[7])], [Read("logits", positions=[12])])


def test_a_recording_made_elsewhere_serves_here(
    surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]],
) -> None:
    """What is kept comes back whole: every layer's z and residual."""
    here, away = surgeons["gemma3"]
    found = away.record(tokens("gemma3"), keep=["z", "resid"])
    wanted = here.record(tokens("gemma3"), keep=["z", "resid"])
    for site in ("z", "resid"):
        assert all(agree(a, b) for a, b in zip(found.sites[site], wanted.sites[site], strict=True))


def test_take_stays_at_home(surgeons: dict[Family, tuple[NNsightSurgeon, NNsightSurgeon]]) -> None:
    """What a caller does with a read may hold things that cannot be sent, and may remember what it saw."""
    here, away = surgeons["qwen3"]
    lock, seen = threading.Lock(), []

    def take(values: Tensor, rows: Tensor) -> Tensor:
        with lock:
            seen.append(rows)
        return values.amax(dim=-1)

    recording = here.record(tokens("qwen3"))
    read = Read("logits", positions=[12], take=take)
    assert agree(away.run(recording, [], [read])[0], here.run(recording, [], [read])[0])
    assert len(seen) == 2


def test_a_failure_elsewhere_is_raised_here(
    folders: dict[Family, Path], other_interpreter: subprocess.Popen[str]
) -> None:
    """The message of the other side comes through."""
    away = client(folders["gemma2"], attn_implementation="eager")
    mistaken = replace(derive(away._module), n_heads=12, n_kv_heads=4)
    surgeon = NNsightSurgeon(away, mistaken, remote=OtherMachine(other_interpreter, folders["gemma2"]))
    with pytest.raises(RuntimeError, match="spread over devices"):
        surgeon.run(surgeon.record(tokens("gemma2")), [], [Read("pattern", 1, heads=[0], positions=[12])])


def test_a_trace_packed_and_unpacked_here_gives_the_same_numbers(folders: dict[Family, Path]) -> None:
    """`remote="local"`, the dry run of a remote one."""
    loaded = client(folders["gemma3"], dispatch=True, attn_implementation="eager")
    prompts, cell = tokens("gemma3"), Cell("k", "head")
    answers = []
    for remote in ("local", False):
        surgeon = NNsightSurgeon(loaded, derive(loaded._module), remote=remote)
        recording = surgeon.record(prompts)
        answers.append(surgeon.run(recording, edits_of(cell, "set"), reads_of(cell), source=SOURCE))
    assert all(torch.equal(one, other) for one, other in zip(*answers, strict=True))


@pytest.mark.parametrize("implementation", ["sdpa", registered.NAME])
def test_attention_that_a_server_lacks_or_hides_is_refused(implementation: str, folders: dict[Family, Path]) -> None:
    """A function registered here does not exist there; sdpa has no pattern. Both are said before anything is sent."""
    registered.register()
    away = client(folders["qwen3"], attn_implementation=implementation)
    with pytest.raises(SurgeryError, match=rf"attention '{implementation}'.*attn_implementation='eager'"):
        NNsightSurgeon(away, derive(away._module), remote=True)


def test_a_model_that_no_server_can_find_is_refused(folders: dict[Family, Path]) -> None:
    """Models built here, and models from folders, have no name elsewhere."""
    model = tiny("gemma2")
    with pytest.raises(SurgeryError, match=r"was built here.*Hub id"):
        NNsightSurgeon(model, derive(model), remote=True)
    loaded = AutoModelForCausalLM.from_pretrained(folders["gemma2"])
    with pytest.raises(SurgeryError, match=r"comes from the folder.*Hub id"):
        NNsightSurgeon(loaded, derive(loaded), remote=True)
