"""Hostile models: how each folder is made from a good one, and the message that must refuse it."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tests.models.folders import change_config, change_weights, save_tiny

Harm: TypeAlias = Callable[[Path, Path], object]
"""Changes a folder; the second path is of the file that code of the folder would leave."""
WORDS = 160
DEEP = 1_000_000
FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
DOUBLED = "{% set all = namespace(x='ab') %}{% for a in range(60) %}{% set all.x = all.x ~ all.x %}{% endfor %}"


@dataclass(frozen=True)
class HostileModel:
    """What is done to a good folder, the error that it must end with, and what that says."""

    harm: Harm
    error: str
    message: str


def specimen(folder: Path) -> Path:
    """A good model, small."""
    return save_tiny(folder, vocab_size=WORDS)


def change_config_values(**changes: Any) -> Harm:
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
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        change(header, "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight")
        changed = json.dumps(header).encode()
        path.write_bytes(len(changed).to_bytes(8, "little") + changed + content[8 + size :])

    return harm


def overlapping(header: dict[str, Any], first: str, second: str) -> None:
    header[first]["data_offsets"] = header[second]["data_offsets"]


def gigantic(header: dict[str, Any], first: str, second: str) -> None:
    header[first]["shape"] = [10**12, 10**6]


def point_past_end(header: dict[str, Any], first: str, second: str) -> None:
    header[first]["data_offsets"] = [0, 10**15]


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


STRIPS = ("single_word", "lstrip", "rstrip", "normalized")
HOSTILE_MODELS: Mapping[str, HostileModel] = {
    "heads that do not divide": HostileModel(
        change_config_values(num_attention_heads=7), "UnsupportedArchitecture", "not a multiple"
    ),
    "heads without keys": HostileModel(
        change_config_values(num_key_value_heads=0), "DamagedModel", "ZeroDivisionError"
    ),
    "wider": HostileModel(change_config_values(hidden_size=48), "DamagedModel", "do not fit"),
    "more layers": HostileModel(
        change_config_values(num_hidden_layers=9), "DamagedModel", "= 9, its weights have 4 of model.layers"
    ),
    "fewer layers": HostileModel(change_config_values(num_hidden_layers=2), "DamagedModel", "= 2, its weights have 4"),
    "a billion layers": HostileModel(
        change_config_values(num_hidden_layers=10**9), "DamagedModel", "its weights have 4"
    ),
    "layers below nothing": HostileModel(
        change_config_values(num_hidden_layers=-1), "DamagedModel", "its weights have 4"
    ),
    "layers in words": HostileModel(
        change_config_values(num_hidden_layers="four"), "DamagedModel", "= four, its weights have 4"
    ),
    "a billion words": HostileModel(change_config_values(vocab_size=10**12), "DamagedModel", "do not fit"),
    "no words": HostileModel(change_config_values(vocab_size=0), "DamagedModel", "do not fit"),
    "another family": HostileModel(
        change_config_values(model_type="mistral"), "DamagedModel", "hold, against config.json"
    ),
    "a family that is a number": HostileModel(
        change_config_values(model_type=5), "UnsupportedArchitecture", "cannot read"
    ),
    "a dtype of its own": HostileModel(change_config_values(dtype="float8_x"), "UnsupportedArchitecture", "float8_x"),
    "an activation of its own": HostileModel(
        change_config_values(hidden_act="__import__"), "DamagedModel", "__import__"
    ),
    "positions of its own": HostileModel(
        change_config_values(rope_parameters={"rope_type": "x"}), "DamagedModel", "'x'"
    ),
    "a beginning that is no number": HostileModel(
        change_config_values(bos_token_id="x"), "UnsupportedArchitecture", "bos_token_id"
    ),
    "quantised in a list": HostileModel(
        change_config_values(quantization_config=[1]), "UnsupportedFormat", "holds quantised weights"
    ),
    "an adapter": HostileModel(file("adapter_config.json", b"{}"), "UnfitAdapter", "Merge it"),
    "nested configuration": HostileModel(file("config.json", b'{"a":' * DEEP), "DamagedModel", "recursion"),
    "nested tokenizer settings": HostileModel(
        file("tokenizer_config.json", b"[" * DEEP * 10), "DamagedModel", "recursion"
    ),
    "nested tokenizer": HostileModel(file("tokenizer.json", b'{"a":' * DEEP), "UnfitTokenizer", "recursion"),
    "configuration without end": HostileModel(
        file("config.json", b" " * 100_000_001), "DamagedModel", "100000001 bytes"
    ),
    "weights that are NaN": HostileModel(
        weights(model__norm__weight=torch.full((24,), torch.nan)), "FailedSelfCheck", "NaN"
    ),
    "weights without end": HostileModel(
        weights(model__norm__weight=torch.full((24,), torch.inf)), "FailedSelfCheck", "infinite"
    ),
    "weights that are nothing": HostileModel(
        weights(model__embed_tokens__weight=torch.zeros(WORDS, 24)), "DamagedModel", "same for different tokens"
    ),
    "missing tensor": HostileModel(weights(model__norm__weight=None), "DamagedModel", "lack model.norm.weight"),
    "tensor of another shape": HostileModel(weights(model__norm__weight=torch.ones(25)), "DamagedModel", "do not fit"),
    "overlapping tensors": HostileModel(header(overlapping), "DamagedModel", "truncated or damaged"),
    "gigantic tensor": HostileModel(header(gigantic), "DamagedModel", "truncated or damaged"),
    "tensor beyond the file": HostileModel(header(point_past_end), "DamagedModel", "truncated or damaged"),
    "gigantic header": HostileModel(
        file("model.safetensors", (1 << 62).to_bytes(8, "little") + b"{}"), "DamagedModel", "header too large"
    ),
    "index of a list": HostileModel(index({"weight_map": [1]}), "DamagedModel", "names no weights"),
    "index of nothing": HostileModel(index({}), "DamagedModel", "names no weights"),
    "index of numbers": HostileModel(index({"weight_map": {"a": 3}}), "DamagedModel", "names no weights"),
    "index out of the folder": HostileModel(
        index({"weight_map": {"a": "../whole/model.safetensors"}}), "DamagedModel", "no .safetensors beside it"
    ),
    "index of a pickle": HostileModel(
        index({"weight_map": {"a": "x.bin"}}), "DamagedModel", "no .safetensors beside it"
    ),
    "pickle": HostileModel(pickled, "UnsupportedFormat", "can run code when they are opened"),
    "code of its own": HostileModel(code("config.json", "AutoModelForCausalLM"), "UnsupportedFormat", "never run here"),
    "tokenizer of its own": HostileModel(
        code("tokenizer_config.json", "AutoTokenizer"), "UnsupportedFormat", "never run here"
    ),
    "token below nothing": HostileModel(add_config(-5, "<x>"), "UnfitTokenizer", "-5"),
    "template without end": HostileModel(template(FOR_EVER), "UnfitTokenizer", "was stopped"),
    "template that doubles": HostileModel(template(DOUBLED), "UnfitTokenizer", "was stopped"),
    "template of ten billion letters": HostileModel(template("{{ 'a' * 10**10 }}"), "UnfitTokenizer", "was stopped"),
    "template of two megabytes": HostileModel(template("{{ 'a' * 2000000 }}"), "UnfitTokenizer", "longer than 1 MB"),
    "template that calculates": HostileModel(
        template("{{ 9 ** (9 ** 9) }}"), "UnfitTokenizer", "was stopped: it took more than"
    ),
    "template that includes": HostileModel(
        template("{% include '/etc/passwd' %}"), "UnfitTokenizer", "refuses a conversation"
    ),
    "template that imports": HostileModel(
        template("{% import 'os' as os %}"), "UnfitTokenizer", "refuses a conversation"
    ),
    "template that looks inside": HostileModel(
        template("{{ ''.__class__.__mro__[1].__subclasses__() }}"), "UnfitTokenizer", "refuses a conversation"
    ),
    "template that writes": HostileModel(
        template("{{ cycler.__init__.__globals__.os.mknod('CANARY') }}"), "UnfitTokenizer", "refuses a conversation"
    ),
}
