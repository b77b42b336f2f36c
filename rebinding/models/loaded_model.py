"""Load a model by name, check it, and prepare it for a surgeon.

**Fingerprint**: sha256 over weights, configuration and tokenizer.

Weights are hashed tensor by tensor, as in memory: the same model saved, sharded or loaded another way has the same
fingerprint; a model with one changed weight or another dtype has another. Tied weights count once.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rebinding.learned.lora import check_fits, merge, read_adapter
from rebinding.models.devices import DTYPES, Device, Dtype, check_dtype, device_map, in_dtype, one_device, torch_dtype
from rebinding.models.errors import UnfitDevice, UnfitTokenizer, UnknownName, UnsupportedArchitecture
from rebinding.models.names import Origin, as_unfit_adapter, folder_of_adapter, of_base, origin
from rebinding.models.probe import token_device
from rebinding.models.selfcheck import as_model_error, check
from rebinding.models.versions import warn_of_untested
from rebinding.paper.circuit import Owner
from rebinding.surgery import Anatomy, Surgeon, TorchSurgeon
from rebinding.surgery.attention import attention_of, set_attention
from rebinding.task.chat import FORMS, Form, PromptError, form_of, wrapping
from rebinding.task.words import LABELS, OBJECTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from rebinding.task.prompts import Encoder

UNRELATED = frozenset({"_name_or_path", "architectures", "transformers_version", "dtype", "torch_dtype", "use_cache"})
"""Fields of a configuration that do not affect the computed numbers."""


def fingerprint(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> str:
    """The fingerprint of a model with its tokenizer, as 64 hexadecimal digits."""
    return join_digests(weights=hash_weights(model), config=hash_config(model), tokenizer=hash_tokenizer(tokenizer))


def join_digests(**parts: str) -> str:
    """One digest over several named ones."""
    return _sha(json.dumps(parts, sort_keys=True).encode())


def hash_weights(model: PreTrainedModel) -> str:
    """A digest over the list of digests of all parameters, which are hashed in parallel."""
    parameters = sorted(model.named_parameters(), key=lambda item: item[0])
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        digests = list(pool.map(lambda item: _hash_tensor(item[1]), parameters))
    return _sha(json.dumps([[name, digest] for (name, _), digest in zip(parameters, digests, strict=True)]).encode())


def _hash_tensor(tensor: Tensor) -> str:
    data = tensor.detach().cpu().contiguous()
    label = f"{data.dtype} {tuple(data.shape)} ".encode()
    digest = hashlib.sha256(label)
    digest.update(data.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def hash_config(model: PreTrainedModel) -> str:
    """A digest of the configuration fields that affect the computed numbers."""
    return _sha(json.dumps(_related(model.config.to_dict()), sort_keys=True, default=str).encode())


def _related(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _related(part) for key, part in value.items() if key not in UNRELATED}
    return [_related(part) for part in value] if isinstance(value, list | tuple) else value


def hash_tokenizer(tokenizer: PreTrainedTokenizerFast) -> str:
    """A digest of the rules of a tokenizer, its special tokens and its chat template; not of its padding side."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    rules.update(padding=None, truncation=None)
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return _sha(json.dumps([rules, special, tokenizer.chat_template], sort_keys=True, default=str).encode())


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model that passed its self-check, with its tokenizer and its chat form.

    `loader` returns the model and is called on first use. A model whose fingerprint is on record
    (`known_fingerprint`, `rebinding.study.plants`) is only built if needed. `device` is where token ids go. `revision`
    is the loaded commit of a model from the Hub. `weights` says how the weights were made, if they are not as stored.
    A model `in_memory` was wrapped and not loaded: it is its owner's, who may change it.
    """

    name: str
    loader: Callable[[], PreTrainedModel]
    tokenizer: PreTrainedTokenizerFast
    anatomy: Anatomy
    form: Form
    dtype: Dtype | Literal["as served"]
    device: torch.device
    revision: str | None = None
    known_fingerprint: str | None = None
    weights: str | None = None
    in_memory: bool = False

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model itself."""
        return self.loader()

    @property
    def fingerprint(self) -> str:
        """sha256 over weights, configuration and tokenizer; computed on first use, of a model in memory each time."""
        return fingerprint(self.model, self.tokenizer) if self.in_memory else self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return self.known_fingerprint or fingerprint(self.model, self.tokenizer)

    def surgeon(self, *, remember: int = 0) -> Surgeon:
        """A surgeon on this model, which caches up to `remember` bytes of recordings."""
        if not self.in_memory:
            return TorchSurgeon(lambda: self.model, self.anatomy, remember=remember)
        with _left_as_found(self.model):  # a surgeon takes over the attention; runs put the owner's back
            return TorchSurgeon(self.model, self.anatomy, remember=remember)

    def encoder(self) -> Encoder:
        """The encoder of prompts to tokens and role positions, in this model's chat form."""
        from rebinding.task.prompts import Encoder

        return Encoder(self.tokenizer, self.form)


def owner_of(loaded_model: LoadedModel) -> Owner:
    """The model as a circuit file names it."""
    return Owner(
        loaded_model.name, loaded_model.fingerprint, loaded_model.anatomy.n_layers, loaded_model.anatomy.n_heads
    )


def load(
    name: str,
    *,
    dtype: str = "float32",
    device: Device = "auto",
    form: Form | None = None,
    revision: str | None = None,
) -> LoadedModel:
    """Load a model by name (see `rebinding.models.names`) and check it; a `ModelError` says what to do.

    `device="auto"` spreads a checkpoint over the available GPUs; planted models stay on the CPU, where they are exact
    and fast enough. `form` is how prompts are put into a chat: by default the alias' own, or what the tokenizer shows.
    """
    model_origin, precision = origin(name, revision=revision), check_dtype(dtype)
    device_map(device)
    _check_form(form)
    warn_of_untested()
    with as_model_error(name):
        return _load(name, model_origin, precision, device, form)


def _load(name: str, model_origin: Origin, precision: Dtype, device: Device, form: Form | None) -> LoadedModel:
    opened = _open(model_origin, precision, device)
    model, tokenizer = opened.model, opened.tokenizer
    chat = form or form_for(name, model_origin, tokenizer)
    check_tokens(name, tokenizer, chat, next(model.get_input_embeddings().parameters()).shape[0])
    return LoadedModel(
        name=name,
        loader=lambda: model,
        tokenizer=tokenizer,
        form=chat,
        anatomy=check(model),
        dtype=precision,
        device=token_device(model),
        revision=opened.revision,
        weights=opened.weights,
    )


def wrap(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, *, name: str | None = None, form: Form | None = None
) -> LoadedModel:
    """Check a model in memory, on its device and in its dtype, and leave it as it was found, also after an error."""
    name = name or f"{type(model).__name__} in memory"
    _check_wrappable(name, model, tokenizer)
    precision = _dtype_of(name, model)
    _check_form(form)
    warn_of_untested()
    with as_model_error(name):
        chat = form or _form_of(name, tokenizer)
        check_tokens(name, tokenizer, chat, next(model.get_input_embeddings().parameters()).shape[0])
        with _left_as_found(model):
            anatomy = check(model)
    return LoadedModel(
        name=name, loader=lambda: model, tokenizer=tokenizer, form=chat, anatomy=anatomy, dtype=precision,
        device=token_device(model), in_memory=True,
    )  # fmt: skip


def _check_wrappable(name: str, model: Any, tokenizer: Any) -> None:
    """Refuse what is no model of transformers, or no fast tokenizer."""
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    if not isinstance(model, PreTrainedModel):
        raise UnsupportedArchitecture(
            f"wrap takes a causal language model of transformers; got a {type(model).__name__}. Of a compiled model"
            " give the one that was compiled, of one with an adapter what merge_and_unload() returns"
        )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        kind = type(tokenizer).__name__
        raise UnfitTokenizer(f"{name}: give its fast tokenizer (PreTrainedTokenizerFast); got a {kind}")


def _dtype_of(name: str, model: PreTrainedModel) -> Dtype:
    """The dtype of all weights; several, or a quantised one, are refused."""
    kinds = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    fitting = [dtype for dtype in DTYPES if kinds == {dtype}]
    if not fitting:
        raise UnfitDevice(
            f"{name} has weights in {', '.join(sorted(kinds))}; give a model whose weights all have one of the dtypes"
            f" {', '.join(DTYPES)}"
        )
    return fitting[0]


@contextmanager
def _left_as_found(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode for the length of a block; afterwards modes and attention are as before."""
    attention, modes = attention_of(model), [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        set_attention(model, attention)


@dataclass(frozen=True)
class _Opened:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    revision: str | None = None
    weights: str | None = None


def _open(model_origin: Origin, dtype: Dtype, device: Device) -> _Opened:
    if model_origin.kind == "planted":
        return _Opened(*_plant(model_origin.target, dtype, device))
    if model_origin.kind == "shape":
        from rebinding.models.shapes import build_shape
        from rebinding.planted.tokenizer import build_tokenizer

        built = build_shape(model_origin.target, dtype=torch_dtype(dtype), device=one_device(device))
        return _Opened(built, build_tokenizer())
    if model_origin.kind in ("learned", "adapter"):
        return _adapted(model_origin, dtype, device)
    if model_origin.kind == "gguf":
        from rebinding.models.gguf import check_gguf, open_gguf, open_gguf_tokenizer

        path = Path(model_origin.target)
        weights = check_gguf(path)
        return _Opened(open_gguf(path, dtype=dtype, device=device), open_gguf_tokenizer(path), None, weights)
    from rebinding.models.checkpoint import locate, open_model, open_tokenizer
    from rebinding.models.hub import commit_of

    folder = locate(model_origin)
    tokenizer = open_tokenizer(folder)
    return _Opened(open_model(folder, dtype=dtype, device=device), tokenizer, commit_of(folder))


def _adapted(model_origin: Origin, dtype: Dtype, device: Device) -> _Opened:
    """A base with its adapter added. A GGUF base is dequantised in float32 and rounded after the addition; any other
    base has the requested dtype, and each sum is rounded once."""
    base, folder = of_base(model_origin), folder_of_adapter(model_origin)
    with as_unfit_adapter():
        adapter = read_adapter(folder)
        opened = _open(base, "float32" if base.kind == "gguf" else dtype, device)
        check_fits(opened.model, adapter)
    merge(opened.model, adapter)
    weights = f"{opened.weights or adapter.base}, with the adapter {folder.name}"
    return _Opened(in_dtype(opened.model, dtype), opened.tokenizer, opened.revision, weights)


def _plant(specification: str, dtype: Dtype, device: Device) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    from rebinding.planted import build, parse

    try:
        plant: Any = build(parse(specification))
    except ValueError as error:
        raise UnknownName(f"planted:{specification}: {error}") from error
    model: Any = in_dtype(plant.model, dtype)
    place = torch.device("cpu") if device == "auto" else one_device(device)
    return model.to(place).eval().requires_grad_(False), plant.tokenizer


def check_tokens(name: str, tokenizer: PreTrainedTokenizerFast, form: Form, rows: int) -> None:
    """Refuse a tokenizer that writes the task's prompts in tokens for which the model has no embedding.

    A tokenizer may have more tokens than the model has rows (marks for images, say): only those of the template and of
    the task's words count. They are checked only where a token of the tokenizer has no row; ids may leave gaps.
    """
    if max(tokenizer.get_vocab().values()) < rows:
        return
    frame, words = wrapping(form, tokenizer), (*LABELS, *OBJECTS)
    texts = [frame.prefix, frame.suffix, *(f" {word}" for word in words)]
    text_of_token = {token: text for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]}
    highest = max(text_of_token)
    if highest >= rows:
        raise UnfitTokenizer(
            f"{name}: the tokenizer writes {text_of_token[highest].strip()[-40:]!r} with token {highest}; the model"
            f" has embeddings for tokens 0 to {rows - 1}. It is another model's, or was given tokens later: load the"
            " folder with its own tokenizer, or with an embedding that has a row for each token"
        )


def form_for(name: str, model_origin: Origin, tokenizer: PreTrainedTokenizerFast) -> Form:
    """How prompts are put into a chat: the alias' own way, or what the tokenizer shows."""
    if model_origin.alias is not None and model_origin.kind != "shape":
        return model_origin.alias.form
    return _form_of(name, tokenizer)


def _check_form(form: Form | None) -> None:
    if form is not None and form not in FORMS:
        raise UnfitTokenizer(f"there is no form {form!r}; the forms are {', '.join(FORMS)}")


def _form_of(name: str, tokenizer: PreTrainedTokenizerFast) -> Form:
    """What the tokenizer shows."""
    try:
        form = form_of(tokenizer)
        wrapping(form, tokenizer)  # refuse an unusable template before weights load
        return form
    except PromptError as error:
        raise UnfitTokenizer(f"{name}: {error}") from error
