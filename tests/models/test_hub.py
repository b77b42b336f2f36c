"""Models on the Hub: from the cache when offline; refusals as the Hub words them, from a Hub of a few lines."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import huggingface_hub
import pytest
import torch

from rebinding.models import errors, load
from tests.close import agree
from tests.models.folders import ROWS, change_config, save_tiny
from tests.surgery.models import tiny, tokens

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model's one snapshot in an otherwise empty cache, with the Hub out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    repository = tmp_path / "cache" / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    for branch in ("main", "other"):
        (repository / "refs" / branch).write_text(COMMIT)
    return save_tiny(repository / "snapshots" / COMMIT)


@contextmanager
def hub(monkeypatch: pytest.MonkeyPatch, status: int, code: str) -> Iterator[list[str]]:
    """A Hub on this machine that answers everything with one error; yields the paths that it was asked for."""
    requested_paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requested_paths.append(self.path)
            body = json.dumps({"error": code}).encode()
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else body)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        try:
            yield requested_paths
        finally:
            server.shutdown()


@pytest.mark.parametrize("name", ["owner/name", "owner/name@other", f"owner/name@{COMMIT}"])
def test_a_cached_model_needs_no_network_and_says_its_commit(name: str, cache: Path) -> None:
    loaded_model = load(name, device="cpu")
    assert loaded_model.revision == COMMIT
    with torch.no_grad():
        assert agree(loaded_model.model(tokens("llama")).logits, tiny("llama", vocab_size=ROWS)(tokens("llama")).logits)


@pytest.mark.parametrize("name", ["gemma3-12b", "llama3.1-8b", "owner/name@elsewhere"])
def test_offline(name: str, cache: Path) -> None:
    with pytest.raises(errors.UnreachableModel, match=r"not on this machine.*HF_HOME .*pass a folder"):
        load(name)


def test_weights_that_never_came(cache: Path) -> None:
    (cache / "model.safetensors").unlink()
    with pytest.raises(errors.ModelError, match=r"lacks model\.safetensors"):
        load("owner/name")


def test_a_refused_model_does_not_need_its_weights(cache: Path) -> None:
    (cache / "model.safetensors").unlink()
    change_config(cache, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    with pytest.raises(errors.UnsupportedFormat, match="asks for the model's own Python code"):
        load("owner/name")


def test_an_adapter_on_the_hub_is_to_be_fetched_first(cache: Path) -> None:
    (cache / "config.json").rename(cache / "adapter_config.json")
    with pytest.raises(errors.UnfitAdapter, match=r"holds an adapter and no model.*--local-dir FOLDER"):
        load("owner/name")


@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (403, "GatedRepo", errors.UnreachableModel, "accept its licence, then log in"),
        (404, "RevisionNotFound", errors.UnknownName, "has no revision 'v9'"),
        (401, "RepoNotFound", errors.UnknownName, "check the spelling; if it is private, log in"),
    ],
)
def test_hub_refusals_are_explained(
    status: int, code: str, error: type[Exception], message: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(cache.parents[1])
    with hub(monkeypatch, status, code) as requested_paths, pytest.raises(error, match=message):
        load("owner/name@v9")
    assert any(
        "owner/name" in path for path in requested_paths
    )  # huggingface_hub asks for things of its own now and then


def test_an_id_that_cannot_be_one(cache: Path) -> None:
    with pytest.raises(errors.UnknownName, match="cannot be a Hub id"):
        load("owner/na..me")


def test_only_the_projects_own_tests_keep_off_the_network() -> None:
    """What is judged may have to be fetched; a default that keeps `pytest claims` offline would refuse every Hub model
    that is not here yet."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    code = "import os, {}; print(os.environ.get('HF_HUB_OFFLINE'))"
    for module, expected in (("conftest", "None"), ("tests.conftest", "1")):
        command = [sys.executable, "-c", code.format(module)]
        assert (
            subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True).stdout.strip()
            == expected
        )
