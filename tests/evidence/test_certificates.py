"""A certificate is found for the model, the precision and the versions that it was made for, and for no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.evidence.certificates import certificate_file, find_certificate, save_certificate
from rebinding.evidence.store import Store, StoreWarning
from rebinding.paper.certificate import installed_versions
from tests.paper.certificates import make_certificate

FINGERPRINT = "0123abcd" * 8


def save(root: Path, **versions: str) -> Path:
    path = certificate_file(root, FINGERPRINT)
    save_certificate(make_certificate(versions=installed_versions() | versions), path)
    return path


def test_a_saved_certificate_is_found(tmp_path: Path) -> None:
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is None
    assert save(tmp_path) == tmp_path / "certificates" / "0123abcd0123.json"
    assert find_certificate(tmp_path, FINGERPRINT, "float32") == make_certificate()
    assert list(Store(tmp_path).entries()) == []  # it is no evidence


def test_another_model_or_precision_is_not_certified_by_it(tmp_path: Path) -> None:
    save(tmp_path)
    assert find_certificate(tmp_path, FINGERPRINT, "bfloat16") is None
    assert find_certificate(tmp_path, FINGERPRINT[:12] + "0" * 52, "float32") is None


@pytest.mark.parametrize("package", ["rebinding", "torch", "transformers"])
def test_other_versions_are_not_certified_by_it(package: str, tmp_path: Path) -> None:
    save(tmp_path, **{package: "0.0.1"})
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is None


def test_versions_that_compute_the_same_do_not_matter(tmp_path: Path) -> None:
    save(tmp_path, python="3.99", nnsight="9.9")
    assert find_certificate(tmp_path, FINGERPRINT, "float32") is not None


def test_a_damaged_certificate_is_ignored_with_a_warning(tmp_path: Path) -> None:
    path = save(tmp_path)
    path.write_text(path.read_text("utf-8")[:-20], "utf-8")
    with pytest.warns(StoreWarning, match="is no certificate"):
        assert find_certificate(tmp_path, FINGERPRINT, "float32") is None
