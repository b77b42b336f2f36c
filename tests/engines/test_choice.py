"""The engine options: valid combinations, contradictions, and the resources of each worker."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rebinding.cli.commands import main
from rebinding.engines.choice import Choice
from rebinding.engines.on_ray import EngineError, Share, connect, share
from rebinding.study.engine import Engine
from tests.claims.test_options import settings

NOT_INSTALLED = 'pip install -e ".[ray]"'


def test_default_engine_is_this_process() -> None:
    assert type(Choice().create()) is Engine
    assert type(settings().engine) is Engine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 2}, "--workers 2: without --engine ray"),
        ({"address": "auto"}, "--address auto: without --engine ray"),
        ({"per_model": 0.0}, "--gpus-per-model 0.0: without --engine ray"),
        ({"engine": "ray", "workers": 0}, "--workers 0: at least one"),
        ({"engine": "ray", "per_model": -1.0}, "--gpus-per-model -1: give 0"),
    ],
)
def test_contradictory_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        Choice(**options).create()


def test_missing_ray_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As an option of pytest, and as an option of a subcommand."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pytest.UsageError) as error:
        settings(engine="ray")
    assert NOT_INSTALLED in str(error.value)
    assert main(["discover", "--model", "planted:pointer", "--engine", "ray"]) == 2
    assert NOT_INSTALLED in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numprocesses": 2}, "--numprocesses and --engine ray: workers of pytest-xdist would each have a cluster"),
        ({"remote": True, "model": ["gemma2-9b"]}, "--remote and --engine ray: NDIF computes on its own servers"),
        ({"skip_unavailable": True}, "--skip-unavailable and --engine ray"),
        ({"circuit": "discovered-all-positions"}, "--circuit discovered-all-positions: the search runs in one process"),
    ],
)
def test_options_that_need_this_process(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.UsageError, match=message):
        settings(engine="ray", **options)


@pytest.mark.parametrize(
    ("has", "options", "expected"),
    [
        ((2, 0), {}, Share(2, 1, 0)),
        ((16, 0), {"workers": 4}, Share(4, 4, 0)),
        ((16, 0), {"threads": 8}, Share(2, 8, 0)),
        ((2, 0), {"workers": 4}, Share(4, 1, 0)),  # two begin when there is room
        ((64, 8), {}, Share(8, 8, 1)),
        ((64, 8), {"per_model": 2.0}, Share(4, 16, 2)),
        ((64, 8), {"per_model": 0.5, "workers": 3}, Share(3, 21, 0.5)),
        ((64, 8), {"per_model": 0.0, "threads": 4}, Share(16, 4, 0)),
    ],
)
def test_resources_of_a_worker(has: tuple[float, float], options: dict[str, Any], expected: Share) -> None:
    assert share(*has, **({"workers": None, "per_model": None, "threads": None} | options)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [({"per_model": 1.0}, "the cluster has 0 GPUs"), ({"threads": 8}, "the cluster has 2 cores")],
)
def test_impossible_resources_are_refused(options: dict[str, Any], message: str) -> None:
    """Ray would wait for them without a message."""
    with pytest.raises(EngineError, match=message):
        share(2, 0, **({"workers": None, "per_model": None, "threads": None} | options))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:10001"])
def test_an_address_where_nobody_answers(address: str) -> None:
    """Port 1 of this machine is nobody's; and what is no HOST:PORT is no address."""
    with pytest.raises(EngineError, match=f"--address {address}: no Ray cluster answers"):
        connect(None, address)
