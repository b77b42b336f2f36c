"""Where a model comes from: what names stand for, the cache and refusals of the Hub, and the licence that is stated."""

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

from rebinding.learned.shelf import learned_models
from rebinding.models import ALIASES, Origin, errors, load, origin
from rebinding.models.errors import UnknownName
from rebinding.models.hub import licence_of_page, stated_licence
from rebinding.models.names import HUB_IDS, names_by_prefix, names_without_prefix, nearest
from tests.close import agree
from tests.families.models import tiny, tokens
from tests.models.folders import ROWS, change_config, save_tiny

GEMMA = ALIASES["gemma2-9b"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma2-9b", Origin("hub", "google/gemma-2-9b-it", GEMMA)),
        ("google/gemma-2-9b-it", Origin("hub", "google/gemma-2-9b-it", GEMMA)),
        ("gemma2-9b@v1", Origin("hub", "google/gemma-2-9b-it", GEMMA, "v1")),
        ("Qwen/Qwen3-8B", Origin("hub", "Qwen/Qwen3-8B")),
        ("Qwen/Qwen3-8B@refs/pr/3", Origin("hub", "Qwen/Qwen3-8B", None, "refs/pr/3")),
        ("planted:pointer@gemma2", Origin("planted", "pointer@gemma2")),
        ("shape:gemma2-9b", Origin("shape", "gemma2-9b", GEMMA)),
        (" gemma2-9b ", Origin("hub", "google/gemma-2-9b-it", GEMMA)),
    ],
)
def test_a_name_stands_for(name: str, expected: Origin) -> None:
    assert origin(name) == expected


def test_a_folder_is_a_folder_whatever_it_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("owner/name", "gemma2-9b", "a=b", "x@y"):
        (tmp_path / name).mkdir(parents=True)
        assert origin(name) == Origin("folder", name)
    assert origin("gemma2-9b=owner/name") == Origin("folder", "owner/name", GEMMA)
    assert origin(str(tmp_path)) == Origin("folder", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "empty name"),
        ("gemma2-9B", "did you mean gemma2-9b"),
        ("gpt2", r"unknown model 'gpt2' \(did you mean openai-community/gpt2\?\)"),
        ("nothing", "unknown model 'nothing'; a model is one of gemma2-9b"),
        ("shape:gemma2", "did you mean shape:gemma2-9b"),
        ("planted:pionter", "^planted:pionter.*no mechanism 'pionter'"),
        ("planted:global+missing", "^planted:global[+]missing.*global has no variant 'missing'"),
        ("planted:pointer@nope", "^planted:pointer@nope.*no architecture 'nope'"),
        ("planted:pointer?box=5", "'box=5' in 'pointer\\?box=5' is no option"),
        ("planted:", "^planted:"),
        ("learned:smolm2", "^learned:smolm2.*did you mean learned:smollm2"),
        ("learned:smollm2?seed=9", "has no recipe in the project"),
        ("gemma9=.", "none of the paper's models"),
        ("gemma2-9b=nowhere", "no folder 'nowhere'"),
        ("./nowhere", "no folder './nowhere'"),
        ("a/b/c", "no folder 'a/b/c'"),
        ("owner/name@", "names no revision"),
    ],
)
def test_other_names_are_refused(name: str, message: str) -> None:
    """The refusal of the name of a built-in model starts with the name."""
    with pytest.raises(UnknownName, match=message):
        origin(name)


def test_a_revision_is_given_once(tmp_path: Path) -> None:
    """Beside the name or in it; both if they agree."""
    for name in ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B@v2"):
        assert origin(name, revision="v2") == origin("Qwen/Qwen3-8B@v2")
    with pytest.raises(UnknownName, match="give one of the two"):
        origin("Qwen/Qwen3-8B@v1", revision="v2")
    with pytest.raises(UnknownName, match="has no revisions"):
        origin(str(tmp_path), revision="v2")


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("gpt2", ["openai-community/gpt2"]),
        ("GPT-2", ["openai-community/gpt2"]),
        ("distilgpt2", ["distilbert/distilgpt2"]),
        ("SmolLM2-135M", ["HuggingFaceTB/SmolLM2-135M"]),
        ("Llama-3.1-8B-Instruct", ["meta-llama/Llama-3.1-8B-Instruct"]),
        ("gemma2-9", ["gemma2-9b"]),
        ("llama3", ["llama3.2-3b", "llama3.1-8b"]),
        ("smollm2", ["learned:smollm2"]),
        ("pointer@gemma3", ["planted:pointer@gemma3"]),
        ("plantd:pointer", ["planted:pointer"]),
        ("planted:pionter", ["planted:pointer"]),
        ("planted:lexcal?boxes=5", ["planted:lexical"]),
        ("planted:global+missing", ["planted:pointer+missing", "planted:global"]),
        ("learned:smolm2", ["learned:smollm2"]),
        ("shape:gemma2-9", ["shape:gemma2-9b"]),
        ("planted:nope", []),
        ("planted:pointer?box=5", []),
        ("learned:smollm2?seed=9", []),
        ("nothing of the sort", []),
        ("x" * 100_000, []),
    ],
)
def test_nearest_name_is_suggested(name: str, names: list[str]) -> None:
    assert nearest(name) == names


def test_every_name_that_may_be_suggested_is_one() -> None:
    of_prefixes = (name for names in names_by_prefix().values() for name in names.values())
    names = {*names_without_prefix().values(), *of_prefixes}
    assert {*ALIASES, *HUB_IDS, *(learned.name for learned in learned_models())} <= names
    assert {f"shape:{alias}" for alias in ALIASES} <= names
    assert {"planted:recency", "planted:global@gemma2", "planted:pointer+missing@llama"} <= names
    for name in names:
        origin(name)


# The Hub

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
    return save_tiny(repository / "snapshots" / COMMIT, num_hidden_layers=2)


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
        expected = tiny("llama", vocab_size=ROWS, num_hidden_layers=2)(tokens("llama")).logits
        assert agree(loaded_model.model(tokens("llama")).logits, expected)


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
