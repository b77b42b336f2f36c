"""Why a model cannot be studied.

There is one class for each thing that a user can do about it; the message says which model, why, and what to do next.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rebinding.surgery.families import FAMILIES

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ModelError(ValueError):
    """A model that cannot be studied."""


class UnknownName(ModelError):
    """A name, path, Hub id or revision that stands for no model."""


class UnreachableModel(ModelError):
    """A model that the Hub or a server does not give to this machine: no network, no accepted licence, no key."""


class UnsupportedFormat(ModelError):
    """Files that are not opened here: pickles, a model's own code, quantised weights, GGUF without its package."""


class UnfitAdapter(ModelError):
    """An adapter that cannot be read, lacks its base, is for another model, or lies beside a model."""


class DamagedModel(ModelError):
    """Files that are incomplete or damaged, or do not fit each other."""


class UnfitTokenizer(ModelError):
    """No fast tokenizer, one of another model, or one from which no chat form follows."""


class UnfitDevice(ModelError):
    """A dtype or device that does not exist or is not available, or has less memory than the model needs."""


class UnsupportedArchitecture(ModelError):
    """A model whose parts cannot be identified, differ from its anatomy, or mix tokens besides attention."""


class FailedSelfCheck(ModelError):
    """A model that computes other numbers than its anatomy, our attention function or a replay gives."""


class ChangedModel(ModelError):
    """A model whose weights, dtype or tokenizer are not those that were announced, or are on record."""


SIGNS: dict[str, str] = {
    r"[Mm]amba": "mixes tokens by state-space layers ({part})",
    r"xLSTM|Rwkv|RecurrentBlock": "mixes tokens by recurrent layers ({part})",
    r"(?<!Kimi)LinearAttention|LightningAttention|Delta(Net|Attention)": "mixes tokens by linear attention ({part})",
    r"ShortConv|:Conv1d$": "mixes neighbouring tokens by convolutions ({part})",
    r"\b(indexer|compressor):": "attends only to keys that an index selects ({part})",
    r"\bkv_b_proj:": "keeps the keys and values of all heads in one latent vector (multi-head latent attention)",
    r"\bencoder_attn:|[Cc]ross_?[Aa]tt": "has layers that also attend to an encoder ({part})",
    r"\bintermediate:\w+Intermediate$": "is built like BERT, an encoder",
    r"DiffLlamaAttention": "subtracts the patterns of two heads (differential attention)",
    r"\bquery_layernorm:": "norms queries and keys after RoPE",
    r"DogeAttention": "masks keys by what their values say (dynamic mask)",
    r"attn\.attn_sub_norm:": "norms the outputs of all heads together",
    r"attn\.(gate_proj|g_proj):": "multiplies the outputs of heads by a gate",
}
"""What a model does, by a pattern in the `parent.name:class` of a module in its layers; the first match counts."""
TOWERS = re.compile(r"vision|visual|audio|image|speech|patcher")
"""Parts of a model beside its text tower."""
IN_LAYER = re.compile(r"\.\d+(\.|$)")
"""The path of a layer, or of a module inside one."""


def explain(model: PreTrainedModel, error: ModelError) -> ModelError:
    """The refusal, with the reason in front if it is known."""
    reason = find_reason(model)
    if reason is None or not isinstance(error, UnsupportedArchitecture):
        return error
    return UnsupportedArchitecture(f"{type(model).__name__} {reason}. {error}")


def find_reason(model: PreTrainedModel) -> str | None:
    """What a model does that this project does not support, as a predicate; None if no sign is known.

    A family with a line in `FAMILIES` is supported: its model is refused for something else.
    """
    config: Any = model.config
    if config.get_text_config().model_type in FAMILIES:
        return None
    parts = [
        (".".join(path.split(".")[-2:]), type(module).__name__)
        for path, module in model.named_modules()
        if IN_LAYER.search(path) and not TOWERS.search(path)
    ]
    names = [f"{name}:{kind}" for name, kind in parts]
    for pattern, reason in SIGNS.items():
        signs = [re.search(pattern, name) is not None for name in names]
        if any(signs):
            text = reason.format(part=parts[signs.index(True)][1])
            has_attention = any(name.endswith("Attention") for name, sign in zip(names, signs, strict=True) if not sign)
            return f"{text} beside attention" if has_attention and reason.startswith("mixes") else text
    return None
