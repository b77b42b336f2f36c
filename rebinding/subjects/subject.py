"""The model under study: loaded by name, checked, and ready for a surgeon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch

from rebinding.subjects.devices import Device, Dtype, check_dtype, device_map, one_device, torch_dtype
from rebinding.subjects.errors import NoChatForm, UnknownName
from rebinding.subjects.fingerprint import fingerprint
from rebinding.subjects.names import Origin, origin
from rebinding.subjects.probe import token_device
from rebinding.subjects.selfcheck import check_subject
from rebinding.surgery import Anatomy, Surgeon, TorchSurgeon
from rebinding.world.chat import FORMS, Form, PromptError, form_of, wrapping

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from rebinding.world.prompts import Encoder


@dataclass(frozen=True, eq=False)
class Subject:
    """A loaded model that passed its self-check, with its tokenizer and the chat form it is asked in.

    `opened` gives the model: at once where it has been loaded, later where what it is was known beforehand
    (`rebinding.study.plants`); then `told` is its fingerprint. `device` is where token ids go. `revision` is the
    commit that was loaded, if the model came from the Hub.
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
        from rebinding.world.prompts import Encoder

        return Encoder(self.tokenizer, self.form)


def load(
    name: str,
    *,
    dtype: str = "float32",
    device: Device = "auto",
    form: Form | None = None,
    revision: str | None = None,
) -> Subject:
    """Load a subject by name (see `rebinding.subjects.names`) and check it; an error of `SubjectError` says what to do.

    `device="auto"` spreads a checkpoint over the GPUs there are; planted models stay on the CPU, where they are exact
    and fast enough. `form` is how prompts are put into a chat: by default the alias' own, or what the tokenizer shows.
    """
    found, precision = origin(name, revision=revision), check_dtype(dtype)
    device_map(device)
    if form is not None and form not in FORMS:
        raise NoChatForm(f"there is no form {form!r}; the forms are {', '.join(FORMS)}")
    model, tokenizer, commit = _open(found, precision, device)
    return Subject(
        name=name,
        opened=lambda: model,
        tokenizer=tokenizer,
        form=form or form_for(name, found, tokenizer),
        anatomy=check_subject(model),
        dtype=precision,
        device=token_device(model),
        revision=commit,
    )


def _open(found: Origin, dtype: Dtype, device: Device) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, str | None]:
    if found.kind == "planted":
        model, tokenizer = _plant(found.target, dtype, device)
        return model, tokenizer, None
    if found.kind == "shape":
        from rebinding.planted.tokenizer import build_tokenizer
        from rebinding.subjects.shapes import build_shape

        built = build_shape(found.target, dtype=torch_dtype(dtype), device=one_device(device))
        return built, build_tokenizer(), None
    from rebinding.subjects.checkpoint import locate, open_model, open_tokenizer
    from rebinding.subjects.hub import commit_of

    folder = locate(found)
    tokenizer = open_tokenizer(folder)
    return open_model(folder, dtype=dtype, device=device), tokenizer, commit_of(folder)


def _plant(specification: str, dtype: Dtype, device: Device) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    from rebinding.planted import build, parse

    try:
        plant: Any = build(parse(specification))
    except ValueError as error:
        raise UnknownName(f"planted:{specification}: {error}") from error
    model: Any = plant.model
    place = torch.device("cpu") if device == "auto" else one_device(device)
    for weight in model.parameters():  # parameters alone: RoPE's frequencies stay exact
        weight.data = weight.data.to(torch_dtype(dtype))
    return model.to(place).eval().requires_grad_(False), plant.tokenizer


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
