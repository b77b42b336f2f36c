"""Models on the Hub: from the cache when offline; refusals as the Hub words them; the licence that a base states."""

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

from rebinding.models import errors, load, origin
from rebinding.models.hub import licence_of_page, stated_licence
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


@pytest.mark.parametrize("name", ["gemma3-12b", "owner/name@elsewhere"])
def test_what_is_not_cached_is_refused_offline(name: str, cache: Path) -> None:
    with pytest.raises(errors.UnreachableModel, match=r"not on this machine.*HF_HOME .*pass a folder"):
        load(name)
    with pytest.raises(errors.UnknownName, match="cannot be a Hub id"):
        load("owner/na..me")


def test_incomplete_snapshots_are_refused_by_their_first_lack(cache: Path) -> None:
    """A model that is refused by its configuration does not need its weights; an adapter has to be fetched first."""
    (cache / "model.safetensors").unlink()
    with pytest.raises(errors.ModelError, match=r"lacks model\.safetensors"):
        load("owner/name")
    change_config(cache, auto_map={"AutoModelForCausalLM": "modeling.Model"})
    with pytest.raises(errors.UnsupportedFormat, match="asks for the model's own Python code"):
        load("owner/name")
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


@pytest.mark.parametrize(("module", "setting"), [("conftest", "None"), ("tests.conftest", "1")])
def test_only_the_projects_own_tests_keep_off_the_network(module: str, setting: str) -> None:
    """What is judged may have to be fetched; a default that keeps `pytest claims` offline would refuse every Hub model
    that is not here yet."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    code = f"import os, {module}; print(os.environ.get('HF_HUB_OFFLINE'))"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.strip() == setting


@pytest.mark.parametrize(
    ("head", "licence"),
    [
        ("license: apache-2.0", "apache-2.0"),
        ("tags:\n- license: mit\nlicense: gemma # see below", "gemma"),
        ('license: "llama3.1"', "llama3.1"),
        ("license:\n- mit\nlanguage: en", "mit"),
        ("license: [mit]", "mit"),
        ("license: other\nlicense_name: LFM Open License v1.0", "LFM Open License v1.0"),
        ("license:\n- mit\n- apache-2.0", None),
        ("license: [mit, apache-2.0]", None),
        ("license: other", None),
        ("license: unknown", None),
        ("license:", None),
        ("license: mit\x1b[31m", None),
        ("license_link: LICENSE", None),
        ("model:\n  license: mit", None),
        ("", None),
        ("license: mit\ntags: [&a a, *a]", None),
        (
            "license: mit\na0: &a0 {x: 1}\n"
            + "\n".join(f"a{n + 1}: &a{n + 1} {{<<: [*a{n}, *a{n}]}}" for n in range(99)),
            None,
        ),
        ("license: mit\ntags: " + "[" * 90_000, None),
        ("license: mit\n1: 2", None),
        ("- license: mit", None),
        ("license: 2026-11-28", None),
    ],
)
def test_the_licence_of_a_page_is_read_from_its_front_matter(head: str, licence: str | None) -> None:
    assert licence_of_page(f"---\n{head}\n---\n\nlicense: bsd\n") == licence


def test_text_outside_front_matter_is_not_read() -> None:
    for page in ("license: mit", "Title\nlicense: mit\n---\n", "---\nlicense: mit\n", ""):
        assert licence_of_page(page) is None


def test_a_folder_and_a_hub_model_state_their_licence_in_the_readme(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name, folder in ((str(tmp_path / "folder"), tmp_path / "folder"), ("owner/name", cache)):
        assert stated_licence(origin(name)) is None
        (folder / "README.md").write_bytes(b"---\nlicense: mit\n---\n\xff")
        assert stated_licence(origin(name)) == "mit"


@pytest.mark.parametrize("licence", ["apache-2.0", "Gemma Terms of Use", None])
def test_a_gguf_file_states_its_licence_in_the_header(licence: str | None, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if licence is not None:
        writer.add_license(licence)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert stated_licence(origin(str(path))) == licence
