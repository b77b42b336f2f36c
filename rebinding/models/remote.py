"""A model on a server (NDIF): its description is fetched, its weights are not, and every run is a request.

The server's dtype and commit cannot be seen from here; they are reported as unknown and not guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import nnsight
import torch

from rebinding.models.checkpoint import check_architecture, description_of, open_tokenizer
from rebinding.models.errors import FailedSelfCheck, UnreachableModel
from rebinding.models.hub import commit_of
from rebinding.models.loaded_model import LoadedModel, form_for, hash_config, hash_tokenizer, join_digests
from rebinding.models.names import Origin, origin
from rebinding.models.probe import SHORT, Allowance, draw_tokens
from rebinding.models.replays import edited_layers, inert_sites
from rebinding.models.selfcheck import derive_checked
from rebinding.surgery import Anatomy, Site
from rebinding.surgery.nnsight_sites import EAGER, Remote
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from rebinding.task.chat import Form

ROWS = 32
"""Rows of one request; the server is shared by many users."""


@dataclass(frozen=True, eq=False)
class RemoteModel(LoadedModel):
    """A model without weights on this machine; `client` is nnsight's view of it."""

    client: Any = None
    remote: Remote = True

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over its name, configuration and tokenizer; weights are not seen."""
        return join_digests(served=self.name, config=hash_config(self.model), tokenizer=hash_tokenizer(self.tokenizer))

    def surgeon(self, *, remember: int = 0) -> NNsightSurgeon:
        """A surgeon whose runs are requests. Nothing is cached: a recording holds only the requested sites."""
        return NNsightSurgeon(self.client, self.anatomy, remote=self.remote, rows=ROWS)


def load_remote(name: str, *, form: Form | None = None) -> RemoteModel:
    """A Hub model by name, to be run on NDIF; one request checks that edits of every site reach its logits."""
    model_origin = origin(name)
    folder = describe(model_origin)
    tokenizer = open_tokenizer(folder)
    client, remote = connect(model_origin)
    loaded_model = RemoteModel(
        name=name,
        loader=lambda: client._module,
        tokenizer=tokenizer,
        form=form or form_for(name, model_origin, tokenizer),
        anatomy=derive_checked(client._module),
        dtype="as served",
        device=torch.device("meta"),
        revision=commit_of(folder),
        client=client,
        remote=remote,
    )
    _check(loaded_model)
    return loaded_model


def describe(model_origin: Origin) -> Path:
    """The folder with a Hub model's configuration and tokenizer; an error if NDIF cannot serve it."""
    if model_origin.kind != "hub":
        raise UnreachableModel(
            f"{model_origin.target} is no model of the Hub, and a server finds its model by Hub id; load it here"
        )
    if nnsight.CONFIG.API.APIKEY is None:
        raise UnreachableModel(
            "NDIF needs an API key, and none is set: set NDIF_API_KEY, or store one with nnsight.login()"
        )
    folder = description_of(model_origin)
    check_architecture(folder)
    return folder


def connect(model_origin: Origin) -> tuple[Any, Remote]:
    """nnsight's view of a Hub model, without weights, and the `remote` option of its traces."""
    options: dict[str, Any] = {} if model_origin.revision is None else {"revision": model_origin.revision}
    return nnsight.TransformersModel(
        model_origin.target, task="text-generation", attn_implementation=EAGER, **options
    ), True


def _check(loaded_model: RemoteModel) -> None:
    tokens = draw_tokens(loaded_model.model, loaded_model.anatomy)[:, :SHORT]
    allowance = Allowance(loaded_model.anatomy.n_layers, loaded_model.anatomy.hidden)
    surgeon = loaded_model.surgeon()
    inert = inert_sites(surgeon, surgeon.record(tokens), lambda site, layer: 1.0, allowance, _middle_layer)
    if inert:
        raise FailedSelfCheck(
            f"{loaded_model.name}: on the server edits of {', '.join(inert)} at a middle layer change nothing that"
            " comes out; its modules differ from its anatomy"
        )


def _middle_layer(anatomy: Anatomy, site: Site) -> list[int]:
    layers = edited_layers(anatomy, site)
    return layers[len(layers) // 2 : len(layers) // 2 + 1]
