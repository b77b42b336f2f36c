"""Load a model and a tokenizer from a folder; refuse whatever transformers would silently repair or drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from rebinding.models.adapted import of_base
from rebinding.models.devices import Device, Dtype, device_map, torch_dtype
from rebinding.models.errors import DamagedWeights, DoesNotFit, MissingTokenizer, UnsupportedArchitecture
from rebinding.models.files import check_description, check_weights, slow_tokenizer, weight_files
from rebinding.models.hub import DESCRIPTION, Download, fetch, plan_download
from rebinding.models.names import Origin


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
    folder = (
        Path(model_origin.target)
        if model_origin.kind == "folder"
        else fetch(model_origin.target, model_origin.revision)
    )
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
        raise MissingTokenizer(f"the tokenizer in {folder} cannot be opened ({error}): save it there again") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise slow_tokenizer(folder)
    return tokenizer


@quiet_transformers()
def open_model(folder: Path, *, dtype: Dtype, device: Device) -> PreTrainedModel:
    """The causal language model of a folder on the library's eager attention, exactly as stored."""
    read: Any = AutoModelForCausalLM.from_pretrained  # its types lack the report that it returns
    try:
        model, report = read(
            folder,
            dtype=torch_dtype(dtype),
            device_map=device_map(device),
            attn_implementation="eager",
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
        )
    except RuntimeError as error:
        if "out of memory" in str(error):
            raise DoesNotFit(f"{folder} does not fit into memory in {dtype}: {_memory_advice()}") from error
        raise _damaged(folder, error) from error
    except Exception as error:  # no model can be built from the configuration
        raise _damaged(folder, error) from error
    check_report(folder, model, report)
    _check_placement(folder, model, dtype)
    loaded: PreTrainedModel = model.eval().requires_grad_(False)
    return loaded


def _damaged(folder: Path, error: Exception) -> DamagedWeights:
    why = f"{type(error).__name__}: {error!s:.500}"
    return DamagedWeights(f"the weights in {folder} do not fit its config.json ({why}): fetch both again")


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
            raise DamagedWeights(
                f"the weights in {folder} {fault} {', '.join(names[:3])}{more}: {type(model).__name__} would not "
                "compute what was saved. Fetch the model again, or save it with the class it was trained in."
            )


def _check_placement(folder: Path, model: PreTrainedModel, dtype: Dtype) -> None:
    places = {str(place) for place in (getattr(model, "hf_device_map", None) or {}).values()}
    on_gpus = places - {"cpu", "disk"}
    if "disk" in places or (on_gpus and "cpu" in places):
        raise DoesNotFit(
            f"{folder} in {dtype} does not fit into the GPUs, parts would go to {sorted(places)}: {_memory_advice()}"
        )


def _memory_advice() -> str:
    return "use dtype='bfloat16', more or larger GPUs, or device='cpu'"
