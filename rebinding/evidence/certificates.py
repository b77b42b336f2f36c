"""Certificates on disk: `certificates/FINGERPRINT.json` in the folder of the evidence, the first 12 digits of it."""

from __future__ import annotations

import warnings
from pathlib import Path

from rebinding.evidence.shards import put_in_place, write_text
from rebinding.evidence.store import StoreWarning
from rebinding.paper.certificate import Certificate, CertificateError, installed_versions, load, to_json

FOLDER = "certificates"
DIGITS = 12
"""Digits of a fingerprint in a file's name."""
RELEVANT = ("rebinding", "torch", "transformers")
"""Packages whose other versions may compute other numbers."""


def certificate_file(root: Path, fingerprint: str) -> Path:
    """The file of a model's certificate, whether it exists or not."""
    return root / FOLDER / f"{fingerprint[:DIGITS]}.json"


def save_certificate(certificate: Certificate, path: Path) -> None:
    """Write a certificate, completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put_in_place({path: lambda part: write_text(part, to_json(certificate))})


def find_certificate(root: Path, fingerprint: str, dtype: str) -> Certificate | None:
    """The saved certificate of a model in this dtype, made with the installed versions."""
    path, installed = certificate_file(root, fingerprint), installed_versions()
    if not path.is_file():
        return None
    try:
        certificate = load(path)
    except CertificateError as error:
        warnings.warn(str(error), StoreWarning, stacklevel=2)
        return None
    is_current = all(certificate.versions.get(name) == installed[name] for name in RELEVANT)
    is_same = (certificate.fingerprint, certificate.dtype) == (fingerprint, dtype)
    return certificate if is_current and is_same else None
