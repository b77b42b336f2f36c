"""A hollow model: the shape of a model without weights, on a fake device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from rebinding.cost.fake_device import FakeDevice, fake_accelerator, move_to_fake_device
from rebinding.experiments.prompts import Prompts
from rebinding.models.devices import Dtype, torch_dtype
from rebinding.models.loaded_model import LoadedModel, form_for
from rebinding.models.names import Origin
from rebinding.models.selfcheck import derive_checked
from rebinding.models.shapes import shape_config, skeleton
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import TorchSurgeon
from rebinding.surgery.batch import Batch, Results
from rebinding.surgery.sites import Attention
from rebinding.task.prompts import Encoded, Encoder, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


class PaddedEncoder(Encoder):
    """The embedded tokenizer with `padding` more tokens in front, to give prompts the length of another tokenizer's."""

    padding = 0

    def encode(self, prompts: Iterable[Prompt], cut: int = 0) -> list[Encoded]:
        return [self._pad(encoded) for encoded in super().encode(prompts, cut)]

    def _pad(self, encoded: Encoded) -> Encoded:
        roles = {name: place + self.padding for name, place in encoded.roles.items()}
        return replace(encoded, ids=encoded.ids[:1] * self.padding + encoded.ids, roles=roles)


class RowCountingSurgeon(TorchSurgeon):
    """The torch surgeon; it records the number of rows of its batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row_counts: list[int] = []

    def _run_batch(self, batch: Batch, attention: Attention | None, results: Results) -> None:
        self.row_counts.append(batch.rows.numel())
        super()._run_batch(batch, attention, results)


@dataclass(frozen=True, eq=False)
class HollowModel(LoadedModel):
    """A model of this shape without weights, used like a loaded one."""

    budget: Callable[[], int] | None = None
    tokens: int = 0
    surgeons: list[RowCountingSurgeon] = field(default_factory=list)

    def surgeon(self, *, remember: int = 0) -> RowCountingSurgeon:
        self.surgeons.append(RowCountingSurgeon(self.model, self.anatomy, remember=remember, budget=self.budget))
        return self.surgeons[-1]

    def encoder(self) -> Encoder:
        padded, encoder = PaddedEncoder(self.tokenizer, self.form), super().encoder()
        unpadded = encoder.encode([Prompts(encoder).design("published").prompt(0)])
        padded.padding = max(0, self.tokens - len(unpadded[0]))
        return padded


def load_hollow(
    alias: str,
    fake_device: FakeDevice,
    *,
    dtype: Dtype,
    tokens: int,
    budget: Callable[[], int] | None,
    config: PreTrainedConfig | None = None,
    **overrides: Any,
) -> HollowModel:
    """A hollow model in the shape of an alias, or of another model's `config`. Prompts of the published design have
    `tokens` tokens, or more if the embedded tokenizer needs them."""
    config = config or shape_config(alias)
    for name, value in overrides.items():
        setattr(config, name, value)
    config._experts_implementation = "batched_mm"  # which tokens an expert gets is unknown without numbers
    name, tokenizer = f"shape:{alias}", build_tokenizer()
    with fake_device:
        model = skeleton(config, torch_dtype(dtype), torch.device("meta"))
        move_to_fake_device(model, fake_device, {"": fake_accelerator()})
        anatomy = derive_checked(model)
    form = form_for(name, Origin("shape", alias), tokenizer)
    return HollowModel(
        name, lambda: model, tokenizer, anatomy, form, dtype, fake_accelerator(),
        known_fingerprint=f"{name}, without weights", budget=budget, tokens=tokens,
    )  # fmt: skip
