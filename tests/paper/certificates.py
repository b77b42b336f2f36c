"""Certificates with invented numbers."""

from __future__ import annotations

from typing import Any

from rebinding.paper.certificate import Certificate, SiteResult, installed_versions


def make_result(site: str = "q", **fields: Any) -> SiteResult:
    """The result of a site; by default an exact one."""
    plain: dict[str, Any] = {"layers": (0, 1, 2, 5), "silent": (), "layer": 1, "token": 7}
    return SiteResult(**{"site": site, "deviation": 0.25, "effect": 300.0, "read": 0.5, **plain, **fields})


def make_certificate(*sites: SiteResult, **fields: Any) -> Certificate:
    """A certificate of a model of six layers; by default one that passes."""
    plain: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "anatomy": {"layers": 6, "heads": [4, 8], "norms": "pre"},
        "versions": installed_versions(),
        "dtype": "float32",
        "device": "cpu",
        "tokens": 100,
        "layers": (0, 1, 2, 3, 4, 5),
        "sites": sites or (make_result("q"), make_result("k group"), make_result("k head", read=None)),
        "replay": 0.01,
        "attention": 0.0,
        "gaps": (),
        "errors": (),
        "model": "owner/name",
        "fingerprint": "0123abcd" * 8,
    }
    return Certificate(**{**plain, **fields})
