"""A pytest plugin in place of NDIF: Hub models come from the folder SERVED; traces are packed as for a server, and run
here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Exchange the two ways out of this machine: files from the Hub, requests to a server."""
    import nnsight  # gives every object a `save`, which other plugins stumble over if it comes before them

    from rebinding.models import checkpoint, remote
    from rebinding.surgery.nnsight_sites import EAGER

    folder = Path(os.environ["SERVED"])
    nnsight.CONFIG.API.APIKEY = "a key"
    client = nnsight.TransformersModel(str(folder), task="text-generation", attn_implementation=EAGER, dispatch=True)
    exchange = pytest.MonkeyPatch()
    exchange.setattr(checkpoint, "fetch", lambda repository, revision: folder)
    exchange.setattr(remote, "connect", lambda spec: (client, "local"))
