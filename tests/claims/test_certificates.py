"""A run finds the certificate of its models, in its own store or the default one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.report import describe_certificate
from rebinding.evidence.certificates import certificate_file, save_certificate
from rebinding.evidence.store import Store
from rebinding.paper.certificate import summarise
from tests.paper.certificates import make_certificate

LOADED: Any = SimpleNamespace(fingerprint="0123abcd" * 8, dtype="float32")


def model_in(store: Path | None, dtype: str | None = None) -> Any:
    settings = SimpleNamespace(store=None if store is None else Store(store), dtype=dtype)
    return SimpleNamespace(name="a model", settings=settings)


@pytest.mark.parametrize(("folder", "store"), [("own", "own"), (".rebinding", "own"), (".rebinding", None)])
def test_a_saved_certificate_is_found(
    folder: str, store: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REBINDING_STORE", raising=False)
    certificate = make_certificate()
    save_certificate(certificate, certificate_file(tmp_path / folder, LOADED.fingerprint))
    description = describe_certificate(model_in(None if store is None else tmp_path / store), LOADED)
    assert description == {"certificate": summarise(certificate), "certified": certificate.sentence}


def test_without_one_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert describe_certificate(model_in(tmp_path), LOADED) == {
        "certificate": None,
        "certified": "Not certified: run `rebinding certify 'a model'`",
    }
    certified = describe_certificate(model_in(None, "bfloat16"), LOADED)["certified"]
    assert certified == "Not certified: run `rebinding certify 'a model' --dtype bfloat16`"
