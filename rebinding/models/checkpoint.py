"""Load a model and a tokenizer from a folder; refuse whatever transformers would silently repair or drop.

The folder's files are checked before anything in it is run or loaded.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from rebinding.models.devices import Device, Dtype, device_map, torch_dtype
from rebinding.models.errors import (
    DamagedModel,
    UnfitAdapter,
    UnfitDevice,
    UnfitTokenizer,
    UnknownName,
    UnsupportedArchitecture,
    UnsupportedFormat,
)
from rebinding.models.hub import DESCRIPTION, Download, fetch, plan_download
from rebinding.models.names import Origin, of_base

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_JSON_BYTES = 100_000_000
"""Bytes of a JSON file that are read; the largest tokenizers have a third of that."""
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names of the number of layers in configurations."""
TOWERS = ("text_config", "llm_config", "language_config")
"""Sections of the text model in configurations of multimodal models."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def locate(model_origin: Origin) -> Path:
    """The folder of a checked model that is not built here; a Hub model is checked before its weights are fetched."""
    folder = description_of(model_origin)
    if model_origin.kind != "folder":
        folder = fetch(model_origin.target, model_origin.revision, [*DESCRIPTION, *weight_files(folder)])
    check_weights(folder)
    check_architecture(folder)
    return folder


def plan_weights(model_origin: Origin) -> Download:
    """The weights of a checked Hub model that are not on this machine; only its description is fetched."""
    folder = description_of(model_origin)
    check_architecture(folder)
    return plan_download(model_origin.target, model_origin.revision, weight_files(folder))


def description_of(model_origin: Origin) -> Path:
    """The folder of a model's configuration and tokenizer; from the Hub, weights are not fetched."""
    is_here = model_origin.kind == "folder"
    folder = Path(model_origin.target) if is_here else fetch(model_origin.target, model_origin.revision)
    check_description(folder)
    return folder


def read_description(model_origin: Origin) -> tuple[PreTrainedConfig, PreTrainedTokenizerFast]:
    """Configuration and tokenizer of a folder, a GGUF file, an adapter's base or a model on the Hub (nothing else is
    fetched); refused as loading would refuse them."""
    from rebinding.models.gguf import open_gguf_tokenizer

    model_origin = of_base(model_origin)
    if model_origin.kind == "gguf":
        path = Path(model_origin.target)
        tokenizer = open_gguf_tokenizer(path)
        with quiet_transformers():
            return _read_config(path.parent, gguf_file=path.name), tokenizer
    folder = description_of(model_origin)
    return check_architecture(folder), open_tokenizer(folder)


def _read_config(folder: Path, **options: str) -> PreTrainedConfig:
    config: PreTrainedConfig = AutoConfig.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True, **options
    )
    return config


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Show progress bars of transformers on a terminal only, and no warnings: faults are errors here.

    TRANSFORMERS_VERBOSITY=info still shows everything.
    """
    hook, level = logging.set_tqdm_hook(_bar_on_terminal), logging.get_verbosity()
    if level == WARNING:
        logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_tqdm_hook(hook)
        logging.set_verbosity(level)


def _bar_on_terminal(bar: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return bar(*args, **{**kwargs, "disable": None})


@quiet_transformers()
def open_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The fast tokenizer of a folder."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=False, local_files_only=True)
    except Exception as error:  # transformers and tokenizers raise any error on broken files
        raise UnfitTokenizer(f"the tokenizer in {folder} cannot be opened ({error}): save it there again") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise slow_tokenizer(folder)
    return tokenizer


@quiet_transformers()
def open_model(folder: Path, *, dtype: Dtype, device: Device) -> PreTrainedModel:
    """The causal language model of a folder on the library's eager attention, exactly as stored."""
    try:
        model, report = read_weights(folder, dtype, device, use_safetensors=True)
    except Exception as error:  # no model can be built from the configuration
        if isinstance(error, RuntimeError) and "out of memory" in str(error):
            raise UnfitDevice(f"{folder} does not fit into memory in {dtype}: {_memory_advice()}") from error
        why = f"{type(error).__name__}: {error!s:.500}"
        raise DamagedModel(f"the weights in {folder} do not fit its config.json ({why}): fetch both again") from error
    check_report(folder, model, report)
    _check_placement(folder, model, dtype)
    return model


def read_weights(folder: Path, dtype: Dtype, device: Device, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """A causal language model on the library's eager attention, and the library's report of what it read."""
    read: Any = AutoModelForCausalLM.from_pretrained  # its types lack the report that it returns
    model, report = read(
        folder,
        dtype=torch_dtype(dtype),
        device_map=device_map(device),
        attn_implementation="eager",
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        **options,
    )
    return model.eval().requires_grad_(False), report


@quiet_transformers()
def check_architecture(folder: Path) -> PreTrainedConfig:
    """The configuration of a causal language model known to transformers; anything else is refused."""
    try:
        config = _read_config(folder)
    except Exception as error:  # several libraries validate, each with its own errors
        raise UnsupportedArchitecture(f"transformers cannot read {folder / 'config.json'}: {error}") from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedArchitecture(
            f"{folder} holds a {config.model_type}, which transformers does not offer as a causal language model: "
            "pass a decoder-only model"
        )
    return config


def check_report(folder: Path, model: PreTrainedModel, report: dict[str, Any]) -> None:
    """Refuse weights that transformers would invent, and weights of existing modules that it would drop."""
    modules = {name for name, _ in model.named_modules()}
    dropped = [name for name in report["unexpected_keys"] if name.rpartition(".")[0] in modules]
    faults = {
        "lack": sorted(report["missing_keys"]),
        "have in another shape": sorted(str(item) for item in report["mismatched_keys"]),
        "hold, against config.json,": sorted(dropped),
    }
    for fault, names in faults.items():
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise DamagedModel(
                f"the weights in {folder} {fault} {', '.join(names[:3])}{more}: {type(model).__name__} would not "
                "compute what was saved. Fetch the model again, or save it with the class it was trained in."
            )


def _check_placement(folder: Path, model: PreTrainedModel, dtype: Dtype) -> None:
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    on_gpus = places - {"cpu", "disk"}
    if "disk" in places or (on_gpus and "cpu" in places):
        raise UnfitDevice(
            f"{folder} in {dtype} does not fit into the GPUs, parts would go to {sorted(places)}: {_memory_advice()}"
        )


def _memory_advice() -> str:
    return "use dtype='bfloat16', more or larger GPUs, or device='cpu'"


def check_description(folder: Path) -> None:
    """Refuse a model whose configuration or tokenizer files are unsuitable."""
    has_config = (folder / "config.json").is_file()
    if (
        not has_config and (folder / "adapter_config.json").is_file()
    ):  # a folder with only an adapter can be loaded by name
        raise UnfitAdapter(
            f"{folder} holds an adapter and no model: fetch all of it (`hf download OWNER/NAME --local-dir FOLDER`) and"
            " pass that folder"
        )
    if not has_config:
        raise UnknownName(f"{folder} has no config.json: it is not a folder that save_pretrained wrote")
    config = _read(folder / "config.json")
    for name in ("config.json", "tokenizer_config.json"):
        if (folder / name).is_file() and "auto_map" in _read(folder / name):
            raise UnsupportedFormat(
                f"{folder / name} asks for the model's own Python code (auto_map), which is never run here. If "
                f"transformers itself implements {config.get('model_type', 'this model')!r}, take auto_map out of a "
                "copy of the folder and pass the copy; otherwise this model cannot be studied."
            )
    if config.get("quantization_config"):
        settings = config["quantization_config"]
        method = settings.get("quant_method", "quantised") if isinstance(settings, dict) else "quantised"
        raise UnsupportedFormat(
            f"{folder} holds {method} weights: edits are checked against exact arithmetic, so pass the checkpoint "
            "that it was made from, with dtype='bfloat16' if memory is short"
        )
    if (folder / "adapter_config.json").exists():
        raise UnfitAdapter(
            f"{folder} holds an adapter beside a model: transformers would add it where peft is installed, and only "
            "there. Merge it (merge_and_unload), save the whole with save_pretrained, and pass that folder."
        )
    _check_tokenizer(folder)


def _check_tokenizer(folder: Path) -> None:
    if (folder / "tokenizer.json").is_file():
        return
    traces = ("tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt")
    if any((folder / name).is_file() for name in traces):
        raise slow_tokenizer(folder)
    raise UnfitTokenizer(f"{folder} holds no tokenizer: save one there with tokenizer.save_pretrained")


def slow_tokenizer(folder: Path) -> UnfitTokenizer:
    """The refusal of a tokenizer that is not a fast one."""
    return UnfitTokenizer(
        f"{folder} has no fast tokenizer (tokenizer.json): roles are found by character offsets, which slow ones do "
        "not give. If the family has a fast one, write it with "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
    )


def weight_files(folder: Path) -> list[str]:
    """The names of a model's safetensors files, from its index if it has one."""
    if (folder / INDEX).is_file():
        return _files_of_index(folder / INDEX, _read(folder / INDEX))
    return [SINGLE]


def check_weights(folder: Path) -> None:
    """Refuse weights that are absent, pickled, cut short or of other layers. Reads headers, not tensors."""
    missing = [name for name in weight_files(folder) if not (folder / name).is_file()]
    if missing and any(path for pattern in PICKLES for path in folder.glob(pattern)):
        raise UnsupportedFormat(
            f"{folder} stores its weights as pickles, which can run code when they are opened: convert them once, on a "
            "machine where you trust the file, with model.save_pretrained(FOLDER), and pass that folder"
        )
    if missing:
        raise DamagedModel(f"{folder} lacks {', '.join(missing)}: fetch the model again, completely")
    tensors: list[str] = []
    for name in weight_files(folder):
        try:
            with safe_open(folder / name, framework="pt") as file:
                tensors += file.keys()
        except SafetensorError as error:
            size = (folder / name).stat().st_size
            raise DamagedModel(
                f"{folder / name} ({size} bytes) is truncated or damaged ({error}): fetch it again. A file of some "
                "hundred bytes is a pointer that `git lfs pull` replaces."
            ) from error
    _check_layers(folder, _read(folder / "config.json"), tensors)


def _read(path: Path) -> dict[str, Any]:
    size = path.stat().st_size
    if size > MAX_JSON_BYTES:
        raise DamagedModel(f"{path} has {size} bytes; nothing that describes a model has more than {MAX_JSON_BYTES}")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedModel(f"{path} is not JSON ({error}): fetch it again") from error
    if not isinstance(content, dict):
        raise DamagedModel(f"{path} holds no object but a {type(content).__name__}: fetch it again")
    return content


def _files_of_index(path: Path, index: Mapping[str, Any]) -> list[str]:
    """The files that an index names: plain names, in the folder that the index is in."""
    files = index.get("weight_map")
    names = set(files.values()) if isinstance(files, dict) and all(map(_is_name, files.values())) else set()
    if not names:
        raise DamagedModel(
            f"{path} names no weights, or files that are no .safetensors beside it: fetch the model again, completely"
        )
    return sorted(names)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and Path(value).name == value and value.endswith(".safetensors")


def _check_layers(folder: Path, config: Mapping[str, Any], tensors: Iterable[str]) -> None:
    """Refuse a configuration whose number of layers differs from the weights'.

    With fewer, transformers would silently drop the rest; with a billion, it would begin to build them.
    """
    stated = {name: value for name, value in _stated_layers(config) if value is not None}
    counts = {prefix: len(numbers) for prefix, numbers in _stacks(tensors).items()}
    wrong = {name: value for name, value in stated.items() if value not in counts.values() or isinstance(value, bool)}
    if counts and wrong:
        name, value = next(iter(wrong.items()))
        has = ", ".join(f"{count} of {prefix}" for prefix, count in sorted(counts.items()))
        raise DamagedModel(
            f"{folder / 'config.json'} says {name} = {str(value)[:40]}, its weights have {has}: they do not belong "
            "together. Fetch both again."
        )


def _stated_layers(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    texts = [config[name] for name in TOWERS if isinstance(config.get(name), dict)]
    for part in texts or [config]:
        yield from ((name, part[name]) for name in LAYERS if name in part)


def _stacks(tensors: Iterable[str]) -> Mapping[str, set[int]]:
    """The numbers of a model's numbered parts, by prefix: `model.layers` has 0, 1, 2 and so on."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for name in tensors:
        parts = name.split(".")
        first = next((place for place, part in enumerate(parts) if part.isdecimal()), None)
        if first is not None:
            numbers[".".join(parts[:first])].add(int(parts[first]))
    return numbers
