"""Which licence a base states: a GGUF file in its header, a folder or a Hub model in its README.md."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from rebinding.models import origin
from rebinding.models.hub import licence_of_page, stated_licence


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
def test_front_matter(head: str, licence: str | None) -> None:
    assert licence_of_page(f"---\n{head}\n---\n\nlicense: bsd\n") == licence


@pytest.mark.parametrize("page", ["license: mit", "Title\nlicense: mit\n---\n", "---\nlicense: mit\n", ""])
def test_text_outside_front_matter_is_not_read(page: str) -> None:
    assert licence_of_page(page) is None


def test_a_folder(tmp_path: Path) -> None:
    assert stated_licence(origin(str(tmp_path))) is None
    (tmp_path / "README.md").write_bytes(b"---\nlicense: mit\n---\n\xff")
    assert stated_licence(origin(str(tmp_path))) == "mit"


def test_a_model_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    repository, commit = tmp_path / "models--owner--name", "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    for folder in (repository / "refs", snapshot):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    assert stated_licence(origin("owner/name")) is None
    (snapshot / "README.md").write_text("---\nlicense: gemma\n---\n")
    assert stated_licence(origin("owner/name")) == "gemma"


@pytest.mark.parametrize("licence", ["apache-2.0", "Gemma Terms of Use", None])
def test_a_gguf_file(licence: str | None, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    if licence is not None:
        writer.add_license(licence)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert stated_licence(origin(str(path))) == licence
