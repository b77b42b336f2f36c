"""What may be said about engines on a command line, what contradicts itself, and what each worker gets."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rebinding.cli.commands import main
from rebinding.engines.choice import Choice
from rebinding.engines.on_ray import EngineError, Share, connect, share
from rebinding.study.engine import InProcessEngine
from tests.claims.test_options import settings

NOT_INSTALLED = 'pip install -e ".[ray]"'


def test_usually_this_process_computes() -> None:
    assert isinstance(Choice().made(), InProcessEngine)
    assert isinstance(settings().engine, InProcessEngine)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"workers": 2}, "--workers 2: without --engine ray"),
        ({"address": "auto"}, "--address auto: without --engine ray"),
        ({"per_model": 0.0}, "--gpus-per-model 0.0: without --engine ray"),
        ({"engine": "ray", "workers": 0}, "--workers 0: at least one"),
        ({"engine": "ray", "per_model": -1.0}, "--gpus-per-model -1: give 0"),
    ],
)
def test_what_contradicts_itself(given: dict[str, Any], told: str) -> None:
    with pytest.raises(EngineError, match=told):
        Choice(**given).made()


def test_without_ray_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an option of pytest, and on the command line of a verb."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(pytest.UsageError) as error:
        settings(engine="ray")
    assert NOT_INSTALLED in str(error.value)
    assert main(["discover", "--model", "planted:pointer", "--engine", "ray"]) == 2
    assert NOT_INSTALLED in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"numprocesses": 2}, "--numprocesses and --engine ray: workers of pytest-xdist would each have a cluster"),
        ({"remote": True, "model": ["gemma2-9b"]}, "--remote and --engine ray: on NDIF nothing is computed by workers"),
        ({"skip_unavailable": True}, "--skip-unavailable and --engine ray"),
        ({"circuit": "discovered-anywhere"}, "--circuit discovered-anywhere: the search runs in one process"),
    ],
)
def test_options_that_need_this_process(given: dict[str, Any], told: str) -> None:
    with pytest.raises(pytest.UsageError, match=told):
        settings(engine="ray", **given)


@pytest.mark.parametrize(
    ("has", "said", "each"),
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
def test_what_a_worker_gets(has: tuple[float, float], said: dict[str, Any], each: Share) -> None:
    assert share(*has, **({"workers": None, "per_model": None, "threads": None} | said)) == each


@pytest.mark.parametrize(
    ("said", "told"), [({"per_model": 1.0}, "the cluster has 0 GPUs"), ({"threads": 8}, "the cluster has 2 cores")]
)
def test_what_no_worker_could_get(said: dict[str, Any], told: str) -> None:
    """Ray would wait for it, without a word."""
    with pytest.raises(EngineError, match=told):
        share(2, 0, **({"workers": None, "per_model": None, "threads": None} | said))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:10001"])
def test_an_address_where_nobody_answers(address: str) -> None:
    """Port 1 of this machine is nobody's; and what is no HOST:PORT is no address."""
    with pytest.raises(EngineError, match=f"--address {address}: no Ray cluster answers"):
        connect(None, address)
