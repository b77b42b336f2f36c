"""Local and remote models of a trace, and the checks of models that cannot run remotely."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import nnsight
from nnsight import NNsight, TransformersModel
from nnsight.intervention.envoy import Envoy
from nnsight.tracing.backend import Backend
from transformers import PreTrainedModel

from rebinding.surgery.checks import SurgeryError

Remote: TypeAlias = bool | Literal["local"] | Backend
"""False: in this process. True: on NDIF. "local": here, but serialised as for NDIF. Or another nnsight backend."""

EAGER = "eager"


def wrapped(model: PreTrainedModel | TransformersModel, remote: Remote) -> Any:
    """The model wrapped for nnsight, able to run where `remote` says."""
    if remote is False:
        return model if isinstance(model, Envoy) else NNsight(model)
    nnsight.register("rebinding")
    if not isinstance(model, TransformersModel):
        model = _by_name(model)
    if model.attn_implementation != EAGER:
        raise SurgeryError(
            f"the model runs on attention {model.attn_implementation!r} and a server would use the same. A "
            "function registered here does not exist there, and only the library's eager attention shows its parts. "
            "Wrap the model with TransformersModel(name, task='text-generation', attn_implementation='eager')."
        )
    return model


def _by_name(model: PreTrainedModel) -> TransformersModel:
    name = str(getattr(model.config, "name_or_path", "") or "")
    if not name or Path(name).exists():
        place = f"comes from the folder {name}" if name else "was built here"
        raise SurgeryError(
            f"a server finds its model by Hub id, and this {type(model).__name__} {place}. Load it by its Hub id, or "
            "pass a TransformersModel that names one."
        )
    revision = getattr(model.config, "_commit_hash", None)
    return TransformersModel(name, revision=revision, task="text-generation", attn_implementation=EAGER)


@contextmanager
def library_attention(model: Any) -> Iterator[None]:
    """Run a model on the library's own eager attention inside the block, whatever it runs on outside."""
    text = model.config.get_text_config()
    previous = text._attn_implementation
    if previous == EAGER:
        yield
        return
    try:
        _choose(model, EAGER)
        if text._attn_implementation != EAGER:
            raise SurgeryError(f"{type(model).__name__} cannot switch from attention {previous!r} to eager")
        yield
    finally:
        _choose(model, previous)


def _choose(model: Any, name: str) -> None:
    config = model.config
    model.set_attn_implementation(name if config.get_text_config() is config else {"text_config": name})
