"""Descriptions of planted models in the store, so that a run with complete evidence builds no model.

A planted model depends only on its name, our source and the libraries. Under these the store keeps its fingerprint, its
anatomy and what it declares. As soon as something has to be computed, the model is built and checked, and its
fingerprint is compared with the one on record.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from rebinding.evidence.request import digest
from rebinding.evidence.sources import code_hash, modules_of
from rebinding.evidence.store import Note, Store, library_versions
from rebinding.models.devices import Device, check_dtype, one_device
from rebinding.models.errors import ChangedModel
from rebinding.models.loaded_model import LoadedModel, form_for, load
from rebinding.models.names import origin
from rebinding.paper.circuit import CircuitHead
from rebinding.planted import Declared, Specification, build, parse
from rebinding.planted.tokenizer import build_tokenizer
from rebinding.surgery import Anatomy
from rebinding.surgery.anatomy import Branches, LayerParts, Mask, Projection

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODELS, PLANTS = "models", "plants"


def load_remembered(name: str, store: Store, *, dtype: str, device: Device = "auto") -> LoadedModel:
    """A planted model by name, built only if it is run."""
    key = _key(name, dtype=dtype, device=str(device))
    built: list[LoadedModel] = []

    def compute_note() -> dict[str, Any]:
        built.append(load(name, dtype=dtype, device=device))
        return {"fingerprint": built[0].fingerprint, "anatomy": asdict(built[0].anatomy)}

    note = _remember(store, MODELS, key, compute_note)
    if built:
        return built[0]
    tokenizer = build_tokenizer()
    return LoadedModel(
        name=name,
        loader=lambda: _check_fingerprint(name, store, load(name, dtype=dtype, device=device), note["fingerprint"]),
        tokenizer=tokenizer,
        anatomy=_anatomy(note["anatomy"]),
        form=form_for(name, origin(name), tokenizer),
        dtype=check_dtype(dtype),
        device=torch.device("cpu") if device == "auto" else one_device(device),
        known_fingerprint=note["fingerprint"],
    )


def declared(specification: Specification, store: Store | None) -> Declared:
    """What a plant declares; it is built once for this."""
    if store is None:
        return build(specification)

    def compute_note() -> dict[str, Any]:
        plant = build(specification)
        return {"circuit": [list(head) for head in plant.circuit], "printed": dict(plant.printed)}

    note = _remember(store, PLANTS, _key(specification.name), compute_note)
    circuit = tuple(CircuitHead(*head) for head in note["circuit"])
    return Declared(parse(specification.name), circuit, MappingProxyType(note["printed"]))


def _remember(store: Store, kind: str, key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    note: dict[str, Any] = json.loads(store.remember(Note, kind, key, lambda: Note(json.dumps(compute()))).text)
    return note


def _key(name: str, **settings: str) -> str:
    """A digest of everything that a planted model depends on; of the processor too, which rounds weights."""
    return digest(
        {
            "name": name,
            "settings": settings,
            "code": code_hash(*modules_of("rebinding.planted"), "rebinding.models.loaded_model"),
            "libraries": dict(library_versions()),
            "processor": [platform.machine(), torch.backends.cpu.get_cpu_capability()],
        }
    )


def _anatomy(fields: dict[str, Any]) -> Anatomy:
    parts = tuple(map(_layer_parts, fields["parts"]))
    branches = None if fields["branches"] is None else Branches(**fields["branches"])
    return Anatomy(**{**fields, "parts": parts, "branches": branches, "prompt_inputs": tuple(fields["prompt_inputs"])})


def _layer_parts(fields: dict[str, Any]) -> LayerParts:
    projections = {name: Projection(**fields[name]) for name in ("q", "k", "v")}
    return LayerParts(**{**fields, **projections, "mask": Mask(**fields["mask"]), "mlp": tuple(fields["mlp"])})


def _check_fingerprint(name: str, store: Store, loaded_model: LoadedModel, fingerprint: str) -> PreTrainedModel:
    if loaded_model.fingerprint != fingerprint:
        raise ChangedModel(
            f"{name} has other weights than those on record in {store.root}: another machine has written "
            "there. Clear the record (rebinding store clear --experiment models), or use another --store."
        )
    return loaded_model.model
