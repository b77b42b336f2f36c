"""Hostile models are refused, each with its own message, in bounded time and memory; none of their code runs.

    python -m tests.oracles.faults.test_hostile_models FOLDER NAME [NAME ...]

makes each from a good folder, loads it in its own fork with little time and memory, and prints the outcomes as JSON.
Whatever runs code of the folder leaves a file, the canary.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from rebinding.models import load
from rebinding.models.errors import UnknownName
from rebinding.models.names import origin
from rebinding.task.chat import limit
from tests.everyday import sampled
from tests.models.folders import change_config, change_weights, save_tiny
from tests.processes import run_in_child, run_module

Harm: TypeAlias = Callable[[Path, Path], object]
"""Changes a folder; the second path is of the file that code of the folder would leave."""
WORDS = 160
SECONDS = 20
"""Of the processor, after which the kernel ends a process."""
DEEP = 1_000_000
STRIPS = ("single_word", "lstrip", "rstrip", "normalized")
FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def config(**changes: Any) -> Harm:
    """A configuration that says something else."""
    return lambda folder, canary: change_config(folder, **changes)


def file(name: str, content: bytes) -> Harm:
    return lambda folder, canary: (folder / name).write_bytes(content)


def weights(**changes: Any) -> Harm:
    return lambda folder, canary: change_weights(folder, **changes)


def index(content: Any) -> Harm:
    return file("model.safetensors.index.json", json.dumps(content).encode())


def template(text: str) -> Harm:
    """Something before the good chat template."""

    def harm(folder: Path, canary: Path) -> None:
        path = folder / "chat_template.jinja"
        path.write_text(text.replace("CANARY", str(canary)) + path.read_text())

    return harm


def overlapping(folder: Path, canary: Path) -> None:
    """A safetensors header in which one tensor is where another of its shape is."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    places = [header[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (0, 1)]
    places[0]["data_offsets"] = places[1]["data_offsets"]
    changed = json.dumps(header).encode()
    path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])


class Touch:
    """Whoever opens the pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (str(self.path),)


def pickled(folder: Path, canary: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch(canary)))


def code(name: str, key: str) -> Harm:
    """A folder that brings Python, and a file that asks for it."""

    def harm(folder: Path, canary: Path) -> None:
        (folder / "evil.py").write_text(f"open({str(canary)!r}, 'w')\nclass Evil: pass\n")
        change_config(folder, name, auto_map={key: "evil.Evil" if "Model" in key else ["evil.Evil", None]})

    return harm


def add_config(number: int, text: str) -> Harm:
    """A tokenizer with one more token."""

    def harm(folder: Path, canary: Path) -> None:
        path = folder / "tokenizer.json"
        rules = json.loads(path.read_text())
        rules["added_tokens"].append({"id": number, "content": text, "special": True} | dict.fromkeys(STRIPS, False))
        path.write_text(json.dumps(rules))

    return harm


REFUSALS: Mapping[str, Mapping[str, tuple[Harm, str]]] = {
    "UnsupportedArchitecture": {
        "heads that do not divide": (config(num_attention_heads=7), "not a multiple"),
        "a family that is a number": (config(model_type=5), "cannot read"),
        "a dtype of its own": (config(dtype="float8_x"), "float8_x"),
        "a beginning that is no number": (config(bos_token_id="x"), "bos_token_id"),
    },
    "DamagedModel": {
        "heads without keys": (config(num_key_value_heads=0), "ZeroDivisionError"),
        "fewer layers": (config(num_hidden_layers=2), "= 2, its weights have 4"),
        "a billion layers": (config(num_hidden_layers=10**9), "its weights have 4"),
        "layers in words": (config(num_hidden_layers="four"), "= four, its weights have 4"),
        "a billion words": (config(vocab_size=10**12), "do not fit"),
        "another family": (config(model_type="mistral"), "hold, against config.json"),
        "an activation of its own": (config(hidden_act="__import__"), "__import__"),
        "positions of its own": (config(rope_parameters={"rope_type": "x"}), "'x'"),
        "nested configuration": (file("config.json", b'{"a":' * DEEP), "recursion"),
        "nested tokenizer settings": (file("tokenizer_config.json", b"[" * DEEP * 10), "recursion"),
        "configuration without end": (file("config.json", b" " * 100_000_001), "100000001 bytes"),
        "weights that are nothing": (
            weights(model__embed_tokens__weight=torch.zeros(WORDS, 24)),
            "same for different tokens",
        ),
        "missing tensor": (weights(model__norm__weight=None), "lack model.norm.weight"),
        "tensor of another shape": (weights(model__norm__weight=torch.ones(25)), "do not fit"),
        "overlapping tensors": (overlapping, "truncated or damaged"),
        "gigantic header": (file("model.safetensors", (1 << 62).to_bytes(8, "little") + b"{}"), "header too large"),
        "index of a list": (index({"weight_map": [1]}), "names no weights"),
        "index of numbers": (index({"weight_map": {"a": 3}}), "names no weights"),
        "index out of the folder": (
            index({"weight_map": {"a": "../whole/model.safetensors"}}),
            "no .safetensors beside it",
        ),
        "index of a pickle": (index({"weight_map": {"a": "x.bin"}}), "no .safetensors beside it"),
    },
    "UnsupportedFormat": {
        "quantised in a list": (config(quantization_config=[1]), "holds quantised weights"),
        "pickle": (pickled, "can run code when they are opened"),
        "code of its own": (code("config.json", "AutoModelForCausalLM"), "never run here"),
        "tokenizer of its own": (code("tokenizer_config.json", "AutoTokenizer"), "never run here"),
    },
    "UnfitAdapter": {
        "an adapter": (file("adapter_config.json", b"{}"), "Merge it"),
    },
    "UnfitTokenizer": {
        "nested tokenizer": (file("tokenizer.json", b'{"a":' * DEEP), "recursion"),
        "token below nothing": (add_config(-5, "<x>"), "-5"),
        "template without end": (template(FOR_EVER), "was stopped"),
        "template of ten billion letters": (template("{{ 'a' * 10**10 }}"), "was stopped"),
        "template of two megabytes": (template("{{ 'a' * 2000000 }}"), "longer than 1 MB"),
        "template that calculates": (template("{{ 9 ** (9 ** 9) }}"), "was stopped: it took more than"),
        "template that includes": (template("{% include '/etc/passwd' %}"), "refuses a conversation"),
        "template that writes": (
            template("{{ cycler.__init__.__globals__.os.mknod('CANARY') }}"),
            "refuses a conversation",
        ),
    },
    "FailedSelfCheck": {
        "weights that are NaN": (weights(model__norm__weight=torch.full((24,), torch.nan)), "NaN"),
        "weights without end": (weights(model__norm__weight=torch.full((24,), torch.inf)), "infinite"),
    },
}
"""By error the models that end in it, each with what is done to a good folder and what the error says."""
HARMS = {name: harm for models in REFUSALS.values() for name, (harm, _) in models.items()}
EVERYDAY = (
    *("a beginning that is no number", "index of a pickle", "quantised in a list", "an adapter"),
    *("configuration without end", "token below nothing", "weights without end", "pickle"),
    *("tokenizer of its own", "template that writes"),
)
"""A model for every error, and for each of its reasons."""


def outcome(folder: Path) -> dict[str, Any]:
    """What becomes of loading a folder, and of putting a prompt into its chat."""
    try:
        load(str(folder)).encoder()
    except Exception as error:
        return {"error": type(error).__name__, "module": type(error).__module__, "says": str(error)}
    return {"error": None, "says": ""}


def load_in_child(folder: Path) -> dict[str, Any]:
    """The same in a process that the kernel ends where it takes too much."""

    def act() -> int:
        limit(SECONDS)
        print(json.dumps(outcome(folder)))
        return 0

    code, text = run_in_child(act)
    return {"code": code, "error": "", "says": text, **(json.loads(text.splitlines()[-1]) if code == 0 else {})}


def main(root: Path, names: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    model, canary = save_tiny(root / "whole", vocab_size=WORDS), root / "canary"
    outcomes = {"as it is": load_in_child(model)}
    for name in names:
        folder = root / "model"
        shutil.copytree(model, folder)
        HARMS[name](folder, canary)
        outcomes[name] = {**load_in_child(folder), "ran": canary.exists()}
        shutil.rmtree(folder)
        canary.unlink(missing_ok=True)
    print(json.dumps(outcomes))


@pytest.mark.parametrize("names", sampled([EVERYDAY, tuple(HARMS)]), ids=["a model for every error", "all"])
def test_hostile_models_are_refused(names: tuple[str, ...], tmp_path: Path, subtests: pytest.Subtests) -> None:
    """The good one is loaded: so what refuses the others is what was done to them."""
    outcomes = run_module("tests.oracles.faults.test_hostile_models", tmp_path, *names)
    assert (outcomes["as it is"]["code"], outcomes["as it is"]["error"]) == (0, None)
    for error, models in REFUSALS.items():
        assert models.keys() & set(names), f"no model for {error}"
        for name in models.keys() & set(names):
            outcome = outcomes[name]
            with subtests.test(name):
                assert outcome["code"] == 0, "the kernel ended it: it took more time or memory than there was"
                assert (outcome["error"], outcome["module"]) == (error, "rebinding.models.errors"), outcome["says"]
                assert models[name][1] in outcome["says"]
                assert not outcome["ran"]


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "owner/\u202eeman"])
def test_a_name_that_steers_a_terminal_is_refused_visibly(name: str) -> None:
    """Whether there is such a folder or not; the message shows what cannot be seen."""
    with pytest.raises(UnknownName, match="cannot be seen") as excinfo:
        origin(name)
    assert str(excinfo.value).isascii()
    assert str(excinfo.value).isprintable()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
