"""Fingerprints of models: sha256 over weights, configuration and tokenizer.

Weights are hashed tensor by tensor, as in memory: the same model saved, sharded or loaded another way has the same
fingerprint; a model with one changed weight or another dtype has another. Tied weights count once.
"""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

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
