"""A subject without weights: the shape of a model, hollow, on a pretended device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from rebinding.cost.fake_device import FakeDevice, disguise, pretended
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


class Lengthened(Encoder):
    """The embedded tokenizer with more tokens of a chat's frame in front, until prompts are as long as with another."""

    more = 0

    def encode(self, prompts: Iterable[Prompt], cut: int = 0) -> list[Encoded]:
        return [self._after(one) for one in super().encode(prompts, cut)]

    def _after(self, one: Encoded) -> Encoded:
        roles = {name: place + self.more for name, place in one.roles.items()}
        return replace(one, ids=one.ids[:1] * self.more + one.ids, roles=roles)


class Rehearsing(TorchSurgeon):
    """The torch surgeon; it notes how many rows its batches have."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.rows_seen: list[int] = []

    def _run_batch(self, batch: Batch, attention: Attention | None, results: Results) -> None:
        self.rows_seen.append(batch.rows.numel())
        super()._run_batch(batch, attention, results)


@dataclass(frozen=True, eq=False)
class Shape(LoadedModel):
    """What a subject of this shape would be, if it were loaded."""

    budget: Callable[[], int] | None = None
    tokens: int = 0
    surgeons: list[Rehearsing] = field(default_factory=list)

    def surgeon(self, *, remember: int = 0) -> Rehearsing:
        self.surgeons.append(Rehearsing(self.model, self.anatomy, remember=remember, budget=self.budget))
        return self.surgeons[-1]

    def encoder(self) -> Encoder:
        found, encoder = Lengthened(self.tokenizer, self.form), super().encoder()
        usual = encoder.encode([Prompts(encoder).design("published").prompt(0)])
        found.more = max(0, self.tokens - len(usual[0]))
        return found


def hollow_subject(
    alias: str,
    fake_device: FakeDevice,
    *,
    dtype: Dtype,
    tokens: int,
    budget: Callable[[], int] | None,
    config: PreTrainedConfig | None = None,
    **overrides: Any,
) -> Shape:
    """A subject in the shape of an alias, or of another model's `config`; prompts of the published design have `tokens`
    tokens (or more, if need be)."""
    config = config or shape_config(alias)
    for name, value in overrides.items():
        setattr(config, name, value)
    name, tokenizer = f"shape:{alias}", build_tokenizer()
    with fake_device:
        model = skeleton(config, torch_dtype(dtype), torch.device("meta"))
        disguise(model, fake_device, {"": pretended()})
        anatomy = derive_checked(model)
    form = form_for(name, Origin("shape", alias), tokenizer)
    return Shape(
        name, lambda: model, tokenizer, anatomy, form, dtype, pretended(),
        known_fingerprint=f"{name}, without weights", budget=budget, tokens=tokens,
    )  # fmt: skip
