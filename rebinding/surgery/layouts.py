"""The known layouts of norms and branches in a decoder layer; the self-check keeps one that rebuilds every layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from rebinding.surgery.parts import Branches

SEQUENTIAL = (
    Branches("input_layernorm", "", "post_attention_layernorm", ""),
    Branches("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    Branches("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    Branches("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"),
    Branches("ln_1", "", "ln_2", ""),
    Branches("self_attn_layer_norm", "", "final_layer_norm", ""),
)
PARALLEL = (
    Branches("input_layernorm", "", "input_layernorm", "", is_parallel=True),
    Branches("input_layernorm", "", "post_attention_layernorm", "", is_parallel=True),
    Branches("ln_1", "", "ln_1", "", is_parallel=True),
)


def layouts(layer: nn.Module, text: Any) -> Iterator[Branches]:
    """The layouts with exactly the norms that a layer has, the likeliest first.

    Norms of queries and keys belong to attention and do not count.
    """
    names = frozenset(name for name, _ in layer.named_children() if "norm" in name or name.startswith("ln_"))
    factor = float(getattr(text, "residual_multiplier", None) or 1.0)
    is_parallel = bool(getattr(layer, "use_parallel_residual", False))
    for layout in (*PARALLEL, *SEQUENTIAL) if is_parallel else (*SEQUENTIAL, *PARALLEL):
        if layout.names == names:
            yield replace(layout, factor=factor)
