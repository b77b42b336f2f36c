"""Raw keys of single query heads are refused where what the model makes of a key is not known exactly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Olmo2Config, Olmo2ForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, apply_rotary_pos_emb, eager_attention_forward

from rebinding.surgery import Edit, Read, Surgeon, SurgeryError, TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.close import is_changed
from tests.surgery.models import SIZES, make_hostile, tiny, tokens

LAST = Read("logits", at=[12])
NOISE = torch.randn(10, generator=torch.Generator().manual_seed(1))


class ScaledKeys(Qwen3Attention):
    """The planted fault: keys are scaled after the rotation."""

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """The forward of Qwen 3, with one line more."""
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(shape)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        key = 1.5 * key
        attention_interface = ALL_ATTENTION_FUNCTIONS.get_interface(  # the name by which nnsight finds it
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attention_interface(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1).contiguous()), weights


def key_edit(scope: Any) -> Edit:
    """A raw key in layer 1, of query head 1 or of its group."""
    return Edit("k", NOISE, at=[6], head=[(1, 0 if scope == "group" else 1)], scope=scope)


@pytest.mark.parametrize(("kind", "error"), [(TorchSurgeon, SurgeryError), (NNsightSurgeon, RuntimeError)])
def test_extra_steps_between_projection_and_attention_are_refused(kind: Any, error: type[Exception]) -> None:
    """Were it not, the edited key would miss the scale. The group's key goes the model's own way and may be edited."""
    model = tiny("qwen3")
    for layer in model.model.layers:
        layer.self_attn.__class__ = ScaledKeys
    surgeon: Surgeon = kind(model, derive(model))
    recording = surgeon.record(tokens("qwen3"))
    with pytest.raises(error, match=r"does more to a key than norm and .*: edit k_rot instead of the raw key"):
        surgeon.run(recording, [key_edit("head")], [LAST])
    (edited,) = surgeon.run(recording, [key_edit("group")], [LAST])
    (clean,) = surgeon.run(recording, [], [LAST])
    assert is_changed(edited, clean)


def test_keys_that_are_normed_together_are_edited_together() -> None:
    """Olmo 2 norms all heads of a key at once: there is no key of one head before the norm, but there is a group's."""
    model = Olmo2ForCausalLM(Olmo2Config(**{**SIZES, "hidden_size": 60}, pad_token_id=0))
    make_hostile(model, 0)
    surgeon = TorchSurgeon(model, derive(model))
    recording = surgeon.record(tokens("llama"))
    with pytest.raises(SurgeryError, match=r"normalises all heads together.*use scope='group'"):
        surgeon.run(recording, [key_edit("head")], [LAST])
    (edited,) = surgeon.run(recording, [key_edit("group")], [LAST])
    (clean,) = surgeon.run(recording, [], [LAST])
    assert is_changed(edited, clean)
