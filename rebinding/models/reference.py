"""Edited runs without recording, prefix or replay: the reference of a certificate.

The library's own model runs forward over all tokens of all rows. Edits outside attention run on the library's eager
attention, edits inside it on a plain attention function (`rebinding.models.reference_pass`). Only the places of the
sites come from the anatomy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rebinding.models.probe import token_device
from rebinding.models.reference_pass import Pass, Values
from rebinding.models.trials import Trial
from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.attention import install
from rebinding.surgery.calling import forget_lengths

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "rebinding_reference"


@dataclass(eq=False)
class Reference:
    """The edited forwards of one model over one prompt (1, token)."""

    model: PreTrainedModel
    anatomy: Anatomy
    tokens: Tensor
    clean: Values = field(default_factory=dict)
    """Every site of the unedited run on the attention function of `Pass`."""
    own: Values = field(default_factory=dict)
    """The sites outside attention of the unedited run on the library's eager attention."""

    def __post_init__(self) -> None:
        for name, values in ((NAME, self.clean), ("eager", self.own)):
            self._forward([None], name, keep=values)

    @property
    def resid(self) -> Tensor:
        """The residual (row, token, hidden) after the last layer, on the library's eager attention."""
        return self.own["resid", self.anatomy.n_layers]

    def run(self, trials: Sequence[Trial]) -> Tensor:
        """The residuals (trial, token, hidden) after the last layer. All trials are live, or all are frozen."""
        held = self.own if trials[0].attention == "frozen" else None
        results: dict[int, Tensor] = {}
        for name, is_inside in (("eager", False), (NAME, True)):
            rows = [number for number, trial in enumerate(trials) if trial.is_inside is is_inside]
            if not rows:
                continue
            batch = [trials[row] for row in rows]
            groups = [trial.group for trial in batch if trial.group is not None]
            resid = self._forward([*batch, *groups], name, held=held)
            results |= dict(zip(rows, resid, strict=False))
        return torch.stack([results[number] for number in range(len(trials))])

    @torch.no_grad()
    def logits(self, trial: Trial | None) -> Tensor:
        """The logits (1, token, vocabulary) of the whole model, with the noise of a trial at its token."""
        with use_attention(self.model, "eager"):
            out: Tensor = self.model(input_ids=self.tokens.to(token_device(self.model)), use_cache=False).logits.clone()
        if trial is not None:
            out[:, trial.position] += trial.value.to(out)
        return out

    @torch.no_grad()
    def _forward(
        self,
        trials: Sequence[Trial | None],
        name: str,
        *,
        held: Mapping[tuple[str, int], Tensor] | None = None,
        keep: Values | None = None,
    ) -> Tensor:
        run = Pass(self.anatomy, trials, held, {} if keep is None else keep, is_kept=keep is not None)
        tokens = self.tokens.expand(len(trials), -1).to(token_device(self.model))
        with use_attention(self.model, name, run.attend), ExitStack() as hooks:
            run.hook(self.model, hooks)
            self.model.get_submodule(self.anatomy.decoder)(input_ids=tokens, use_cache=False)
        return run.values["resid", self.anatomy.n_layers]


@contextmanager
def use_attention(model: PreTrainedModel, name: str, function: Callable[..., Any] | None = None) -> Iterator[None]:
    """Another attention for the length of a block: the library's eager one, or a function that is registered here."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    if name == NAME and function is not None:
        AttentionInterface.register(NAME, function)
        AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
    config: Any = model.config
    model.set_attn_implementation(name if config.get_text_config() is config else {"text_config": name})
    forget_lengths(model)
    try:
        yield
    finally:
        install(model)
