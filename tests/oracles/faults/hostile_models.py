"""Models that mean harm, or lie: how each folder is made of a good one, and what it must be refused with."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tests.subjects.folders import change_config, change_weights, save_tiny

Harm: TypeAlias = Callable[[Path, Path], object]
"""Changes a folder; the second path is of the file that code of the folder would leave."""
WORDS = 160
DEEP = 1_000_000
FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set all = namespace(x='ab') %}{% for a in range(60) %}{% set all.x = all.x ~ all.x %}{% endfor %}"


@dataclass(frozen=True)
class Subject:
    """What is done to a good folder, the error that it must end with, and what that says."""

    harm: Harm
    error: str
    says: str


def specimen(folder: Path) -> Path:
    """A good model, small."""
    return save_tiny(folder, vocab_size=WORDS)


def says(**changes: Any) -> Harm:
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


def header(change: Callable[[dict[str, Any], str, str], None]) -> Harm:
    """A safetensors header in which one tensor, and another of its shape, are something else."""

    def harm(folder: Path, canary: Path) -> None:
        path = folder / "model.safetensors"
        whole = path.read_bytes()
        size = int.from_bytes(whole[:8], "little")
        about = json.loads(whole[8 : 8 + size])
        change(about, "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight")
        changed = json.dumps(about).encode()
        path.write_bytes(len(changed).to_bytes(8, "little") + changed + whole[8 + size :])

    return harm


def overlapping(about: dict[str, Any], one: str, other: str) -> None:
    about[one]["data_offsets"] = about[other]["data_offsets"]


def gigantic(about: dict[str, Any], one: str, other: str) -> None:
    about[one]["shape"] = [10**12, 10**6]


def beyond(about: dict[str, Any], one: str, other: str) -> None:
    about[one]["data_offsets"] = [0, 10**15]


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


def added(number: int, text: str) -> Harm:
    """A tokenizer with one more token."""

    def harm(folder: Path, canary: Path) -> None:
        path = folder / "tokenizer.json"
        rules = json.loads(path.read_text())
        rules["added_tokens"].append({"id": number, "content": text, "special": True} | dict.fromkeys(STRIPS, False))
        path.write_text(json.dumps(rules))

    return harm


STRIPS = ("single_word", "lstrip", "rstrip", "normalized")
SUBJECTS: Mapping[str, Subject] = {
    "heads that do not divide": Subject(says(num_attention_heads=7), "UnsupportedArchitecture", "not a multiple"),
    "heads without keys": Subject(says(num_key_value_heads=0), "DamagedWeights", "ZeroDivisionError"),
    "wider": Subject(says(hidden_size=48), "DamagedWeights", "do not fit"),
    "more layers": Subject(says(num_hidden_layers=9), "DamagedWeights", "= 9, its weights have 4 of model.layers"),
    "fewer layers": Subject(says(num_hidden_layers=2), "DamagedWeights", "= 2, its weights have 4"),
    "a billion layers": Subject(says(num_hidden_layers=10**9), "DamagedWeights", "its weights have 4"),
    "layers below nothing": Subject(says(num_hidden_layers=-1), "DamagedWeights", "its weights have 4"),
    "layers in words": Subject(says(num_hidden_layers="four"), "DamagedWeights", "= four, its weights have 4"),
    "a billion words": Subject(says(vocab_size=10**12), "DamagedWeights", "do not fit"),
    "no words": Subject(says(vocab_size=0), "DamagedWeights", "do not fit"),
    "another family": Subject(says(model_type="mistral"), "DamagedWeights", "hold, against config.json"),
    "a family that is a number": Subject(says(model_type=5), "UnsupportedArchitecture", "cannot read"),
    "a dtype of its own": Subject(says(dtype="float8_x"), "UnsupportedArchitecture", "float8_x"),
    "an activation of its own": Subject(says(hidden_act="__import__"), "DamagedWeights", "__import__"),
    "positions of its own": Subject(says(rope_parameters={"rope_type": "x"}), "DamagedWeights", "'x'"),
    "a beginning that is no number": Subject(says(bos_token_id="x"), "UnsupportedArchitecture", "bos_token_id"),
    "quantised in a list": Subject(says(quantization_config=[1]), "QuantisedModel", "holds quantised weights"),
    "an adapter": Subject(file("adapter_config.json", b"{}"), "AdapterBeside", "Merge it"),
    "nested configuration": Subject(file("config.json", b'{"a":' * DEEP), "NoSuchFolder", "recursion"),
    "nested tokenizer settings": Subject(file("tokenizer_config.json", b"[" * DEEP * 10), "NoSuchFolder", "recursion"),
    "nested tokenizer": Subject(file("tokenizer.json", b'{"a":' * DEEP), "MissingTokenizer", "recursion"),
    "configuration without end": Subject(file("config.json", b" " * 100_000_001), "NoSuchFolder", "100000001 bytes"),
    "weights that are NaN": Subject(weights(model__norm__weight=torch.full((24,), torch.nan)), "NotFinite", "NaN"),
    "weights without end": Subject(weights(model__norm__weight=torch.full((24,), torch.inf)), "NotFinite", "infinite"),
    "weights that are nothing": Subject(
        weights(model__embed_tokens__weight=torch.zeros(WORDS, 24)), "DamagedWeights", "same for different tokens"
    ),
    "missing tensor": Subject(weights(model__norm__weight=None), "DamagedWeights", "lack model.norm.weight"),
    "tensor of another shape": Subject(weights(model__norm__weight=torch.ones(25)), "DamagedWeights", "do not fit"),
    "overlapping tensors": Subject(header(overlapping), "DamagedWeights", "truncated or damaged"),
    "gigantic tensor": Subject(header(gigantic), "DamagedWeights", "truncated or damaged"),
    "tensor beyond the file": Subject(header(beyond), "DamagedWeights", "truncated or damaged"),
    "gigantic header": Subject(
        file("model.safetensors", (1 << 62).to_bytes(8, "little") + b"{}"), "DamagedWeights", "header too large"
    ),
    "index of a list": Subject(index({"weight_map": [1]}), "DamagedWeights", "names no weights"),
    "index of nothing": Subject(index({}), "DamagedWeights", "names no weights"),
    "index of numbers": Subject(index({"weight_map": {"a": 3}}), "DamagedWeights", "names no weights"),
    "index out of the folder": Subject(
        index({"weight_map": {"a": "../whole/model.safetensors"}}), "DamagedWeights", "no .safetensors beside it"
    ),
    "index of a pickle": Subject(index({"weight_map": {"a": "x.bin"}}), "DamagedWeights", "no .safetensors beside it"),
    "pickle": Subject(pickled, "PickledWeights", "can run code when they are opened"),
    "code of its own": Subject(code("config.json", "AutoModelForCausalLM"), "CustomCode", "never run here"),
    "tokenizer of its own": Subject(code("tokenizer_config.json", "AutoTokenizer"), "CustomCode", "never run here"),
    "token below nothing": Subject(added(-5, "<x>"), "MissingTokenizer", "-5"),
    "template without end": Subject(template(FOR_EVER), "NoChatForm", "was stopped"),
    "template that doubles": Subject(template(DOUBLED), "NoChatForm", "was stopped"),
    "template of ten billion letters": Subject(template("{{ 'a' * 10**10 }}"), "NoChatForm", "was stopped"),
    "template of two megabytes": Subject(template("{{ 'a' * 2000000 }}"), "NoChatForm", "longer than 1 MB"),
    "template that calculates": Subject(
        template("{{ 9 ** (9 ** 9) }}"), "NoChatForm", "was stopped: it took more than"
    ),
    "template that includes": Subject(template("{% include '/etc/passwd' %}"), "NoChatForm", "refuses a conversation"),
    "template that imports": Subject(template("{% import 'os' as os %}"), "NoChatForm", "refuses a conversation"),
    "template that looks inside": Subject(
        template("{{ ''.__class__.__mro__[1].__subclasses__() }}"), "NoChatForm", "refuses a conversation"
    ),
    "template that writes": Subject(
        template("{{ cycler.__init__.__globals__.os.mknod('CANARY') }}"), "NoChatForm", "refuses a conversation"
    ),
}
