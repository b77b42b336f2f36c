"""Planted models that were built before: what they are, without building them again.

A planted model is made of nothing but its name, our source and the libraries. So its fingerprint, its anatomy and what
it declares are kept in the store under these, and a run whose evidence is all there builds no model. As soon as
something has to be computed the model is built after all, checked, and its fingerprint held against the one on record.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash, modules_of
from rebinding.evidence.store import LIBRARIES, Note, Store
from rebinding.models.devices import Device, check_dtype, one_device
from rebinding.models.errors import ChangedSubject
from rebinding.models.loaded_model import LoadedModel, form_for, load
from rebinding.models.names import origin
from rebinding.paper.circuit import CircuitHead
from rebinding.planted import Declared, Specification, build, parse
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Anatomy
from rebinding.surgery.anatomy import Projection

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODELS, PLANTS = "models", "plants"


def load_remembered(name: str, store: Store, *, dtype: str, device: Device = "auto") -> LoadedModel:
    """A planted model by name, built only when it is run."""
    key = _key(name, dtype=dtype, device=str(device))
    made: list[LoadedModel] = []

    def first() -> dict[str, Any]:
        made.append(load(name, dtype=dtype, device=device))
        return {"fingerprint": made[0].fingerprint, "anatomy": asdict(made[0].anatomy)}

    known = _remember(store, MODELS, key, first)
    if made:
        return made[0]
    tokenizer = build_tokenizer()
    return LoadedModel(
        name=name,
        opened=lambda: _as_known(name, store, load(name, dtype=dtype, device=device), known["fingerprint"]),
        tokenizer=tokenizer,
        anatomy=_anatomy(known["anatomy"]),
        form=form_for(name, origin(name), tokenizer),
        dtype=check_dtype(dtype),
        device=torch.device("cpu") if device == "auto" else one_device(device),
        told=known["fingerprint"],
    )


def declared(what: Specification, store: Store | None) -> Declared:
    """What a plant says of itself; it is built for this once."""
    if store is None:
        return build(what)

    def first() -> dict[str, Any]:
        plant = build(what)
        return {"circuit": [list(head) for head in plant.circuit], "printed": dict(plant.printed)}

    known = _remember(store, PLANTS, _key(what.name), first)
    circuit = tuple(CircuitHead(*head) for head in known["circuit"])
    return Declared(parse(what.name), circuit, MappingProxyType(known["printed"]))


def _remember(store: Store, kind: str, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.remember(Note, kind, key, lambda: Note(json.dumps(compute()))).text)
    return found


def _key(name: str, **settings: str) -> str:
    """Everything that a planted model is made of; the processor too, by which weights are rounded."""
    return digest(
        {
            "name": name,
            "settings": settings,
            "code": code_hash(*modules_of("rebinding.planted"), "rebinding.models.loaded_model"),
            "libraries": {library: importlib.metadata.version(library) for library in LIBRARIES},
            "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        }
    )


def _anatomy(fields: dict[str, Any]) -> Anatomy:
    parts = {name: Projection(**fields[name]) for name in ("q", "k", "v")}
    return Anatomy(**{**fields, **parts, "windows": tuple(fields["windows"])})


def _as_known(name: str, store: Store, loaded_model: LoadedModel, fingerprint: str) -> PreTrainedModel:
    if loaded_model.fingerprint != fingerprint:
        raise ChangedSubject(
            f"{name} was built with other weights than those on record in {store.root}: another machine has written "
            "there. Clear the record (python -m rebinding store clear --experiment subjects), or use another --store."
        )
    return loaded_model.model
