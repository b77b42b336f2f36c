"""What single families do otherwise than most: one line of data a family.

`rebinding.surgery.anatomy` finds most parts by their names. Where names do not suffice, a line here says the rest; a
family without a line has the defaults. The self-check holds every statement against a run of the model
(`rebinding.models.selfcheck`), so a wrong line is an error at load. To add a family: docs/how-to/add-a-family.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

Rotation: TypeAlias = Literal["pair", "half", "single", "complex", "none"]
"""How an attention module rotates: a function of query and key (its angles as wide as the rotated part of a head, or
`half` as wide), of one of them, of complex numbers; or not at all."""


@dataclass(frozen=True)
class Family:
    """What differs from most families.

    `fused_by_head`: one module puts out query, key and value of each head side by side. `mlp`: the modules of an MLP
    that is no module of its own, in order. `has_gate`: `q_proj` puts out query and gate of each head side by side, and
    the gate multiplies what attention returns. `mixer`: the module of layers without attention that carries a state
    from token to token. `scales_queries`: the module multiplies queries by its `scaling` before attention.
    `common_norm`: one norm of queries and keys, after RoPE. `needs_hook`: layers do not pass keywords on to attention.
    `counts_tokens`: attention counts positions from the length of its cache. `prompt_inputs`: keywords of a layer's
    call that depend on the prompt's tokens. `streams`: the name of the setting that counts parallel residual streams.
    `multiplies_logits`: by `logits_scaling`, by which other families divide.
    """

    fused_by_head: str = ""
    mlp: tuple[str, ...] = ()
    has_gate: bool = False
    mixer: str = ""
    rotation: Rotation = "pair"
    scales_queries: bool = False
    common_norm: str = ""
    needs_hook: bool = False
    counts_tokens: bool = False
    prompt_inputs: tuple[str, ...] = ()
    streams: str = ""
    multiplies_logits: bool = False


GEMMA4 = Family(rotation="single", prompt_inputs=("per_layer_input",))
QWEN_HYBRID = Family(has_gate=True, mixer="linear_attn")
FAMILIES: MappingProxyType[str, Family] = MappingProxyType(
    {
        "gpt_neox": Family(fused_by_head="query_key_value"),
        "opt": Family(mlp=("fc1", "activation_fn", "fc2"), scales_queries=True),
        "stablelm": Family(needs_hook=True),
        "nemotron": Family(needs_hook=True),
        "gpt_oss": Family(rotation="half"),
        "llama4_text": Family(rotation="complex", common_norm="qk_norm", counts_tokens=True),
        "hyperclovax": Family(multiplies_logits=True),
        "qwen3_next": QWEN_HYBRID,
        "qwen3_5_text": QWEN_HYBRID,
        "qwen3_5_moe_text": QWEN_HYBRID,
        "gemma4_text": GEMMA4,
        "gemma4_unified_text": GEMMA4,
        "gemma3n_text": Family(rotation="single", prompt_inputs=("per_layer_input",), streams="altup_num_inputs"),
    }
)
"""By `model_type` of the text configuration."""
