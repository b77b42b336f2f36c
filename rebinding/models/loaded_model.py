"""The model under study: loaded by name, checked, and ready for a surgeon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from rebinding.learned.files import AdapterError, check_fits
from rebinding.learned.files import read as read_adapter
from rebinding.learned.lora import merge
from rebinding.models.adapted import folder_of_adapter, of_base
from rebinding.models.devices import Device, Dtype, check_dtype, device_map, in_dtype, one_device, torch_dtype
from rebinding.models.errors import NoChatForm, OtherTokenizer, UnfitAdapter, UnknownName
from rebinding.models.fingerprint import fingerprint
from rebinding.models.names import Origin, origin
from rebinding.models.probe import token_device
from rebinding.models.selfcheck import as_subject_error, check_subject
from rebinding.surgery import Anatomy, Surgeon, TorchSurgeon
from rebinding.task.chat import FORMS, Form, PromptError, form_of, wrapping
from rebinding.task.words import LABELS, OBJECTS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from rebinding.task.prompts import Encoder


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A loaded model that passed its self-check, with its tokenizer and the chat form it is asked in.

    `opened` gives the model: at once where it has been loaded, later where what it is was known beforehand
    (`rebinding.study.plants`); then `told` is its fingerprint. `device` is where token ids go. `revision` is the
    commit that was loaded, if the model came from the Hub; `weights` says how they were made, where they are not simply
    what is stored.
    """

    name: str
    opened: Callable[[], PreTrainedModel]
    tokenizer: PreTrainedTokenizerFast
    anatomy: Anatomy
    form: Form
    dtype: Dtype | Literal["as served"]
    device: torch.device
    revision: str | None = None
    told: str | None = None
    weights: str | None = None

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model itself."""
        return self.opened()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over weights, configuration and tokenizer; computed when first asked for."""
        return self.told or fingerprint(self.model, self.tokenizer)

    def surgeon(self, *, remember: int = 0) -> Surgeon:
        """A surgeon on this subject, which keeps up to `remember` bytes of recordings."""
        return TorchSurgeon(lambda: self.model, self.anatomy, remember=remember)

    def encoder(self) -> Encoder:
        """From prompts to tokens and role positions, in this subject's chat form."""
        from rebinding.task.prompts import Encoder

        return Encoder(self.tokenizer, self.form)


def load(
    name: str,
    *,
    dtype: str = "float32",
    device: Device = "auto",
    form: Form | None = None,
    revision: str | None = None,
) -> LoadedModel:
    """Load a subject by name (see `rebinding.models.names`) and check it; an error of `ModelError` says what to do.

    `device="auto"` spreads a checkpoint over the GPUs there are; planted models stay on the CPU, where they are exact
    and fast enough. `form` is how prompts are put into a chat: by default the alias' own, or what the tokenizer shows.
    """
    found, precision = origin(name, revision=revision), check_dtype(dtype)
    device_map(device)
    if form is not None and form not in FORMS:
        raise NoChatForm(f"there is no form {form!r}; the forms are {', '.join(FORMS)}")
    with as_subject_error(name):
        return _load(name, found, precision, device, form)


def _load(name: str, found: Origin, precision: Dtype, device: Device, form: Form | None) -> LoadedModel:
    opened = _open(found, precision, device)
    model, tokenizer = opened.model, opened.tokenizer
    chat = form or form_for(name, found, tokenizer)
    check_tokens(name, tokenizer, chat, next(model.get_input_embeddings().parameters()).shape[0])
    return LoadedModel(
        name=name,
        opened=lambda: model,
        tokenizer=tokenizer,
        form=chat,
        anatomy=check_subject(model),
        dtype=precision,
        device=token_device(model),
        revision=opened.revision,
        weights=opened.weights,
    )


@dataclass(frozen=True)
class _Opened:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    revision: str | None = None
    weights: str | None = None


def _open(found: Origin, dtype: Dtype, device: Device) -> _Opened:
    if found.kind == "planted":
        return _Opened(*_plant(found.target, dtype, device))
    if found.kind == "shape":
        from rebinding.models.shapes import build_shape
        from rebinding.planted.tokenizer import build_tokenizer

        built = build_shape(found.target, dtype=torch_dtype(dtype), device=one_device(device))
        return _Opened(built, build_tokenizer())
    if found.kind in ("learned", "adapter"):
        return _adapted(found, dtype, device)
    if found.kind == "gguf":
        from rebinding.models.gguf import check_gguf, open_gguf, open_gguf_tokenizer

        path = Path(found.target)
        weights = check_gguf(path)
        return _Opened(open_gguf(path, dtype=dtype, device=device), open_gguf_tokenizer(path), None, weights)
    from rebinding.models.checkpoint import locate, open_model, open_tokenizer
    from rebinding.models.hub import commit_of

    folder = locate(found)
    tokenizer = open_tokenizer(folder)
    return _Opened(open_model(folder, dtype=dtype, device=device), tokenizer, commit_of(folder))


def _adapted(found: Origin, dtype: Dtype, device: Device) -> _Opened:
    """A base with an adapter added: to what a GGUF file gives in float32, before anything is rounded; else to the
    weights in the dtype that they are asked for in, each sum rounded once."""
    base, folder = of_base(found), folder_of_adapter(found)
    try:
        adapter = read_adapter(folder)
        opened = _open(base, "float32" if base.kind == "gguf" else dtype, device)
        check_fits(opened.model, adapter)
    except AdapterError as error:
        raise UnfitAdapter(str(error)) from error
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

    A tokenizer may know more tokens than the model has rows (marks for images, say): only those of the template and of
    the task's words count. They are looked at where the tokenizer is the larger one, and nowhere else.
    """
    if len(tokenizer) <= rows:
        return
    around, words = wrapping(form, tokenizer), (*LABELS, *OBJECTS)
    texts = [around.prefix, around.suffix, *(f" {word}" for word in words)]
    found = {token: text for text in texts for token in tokenizer(text, add_special_tokens=False)["input_ids"]}
    highest = max(found)
    if highest >= rows:
        raise OtherTokenizer(
            f"{name}: the tokenizer writes {found[highest].strip()[-40:]!r} with token {highest}, and the model has"
            f" embeddings for tokens 0 to {rows - 1}. The tokenizer is another model's; load the folder with its own"
        )


def form_for(name: str, found: Origin, tokenizer: PreTrainedTokenizerFast) -> Form:
    """How prompts are put into a chat: the alias' own way, or what the tokenizer shows."""
    if found.alias is not None and found.kind != "shape":
        return found.alias.form
    try:
        form = form_of(tokenizer)
        wrapping(form, tokenizer)  # a template that is of no use, or does not end, is refused before the weights
        return form
    except PromptError as error:
        raise NoChatForm(f"{name}: {error}") from error
