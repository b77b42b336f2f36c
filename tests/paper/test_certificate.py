"""A certificate says what is wrong and what to do, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rebinding.paper.certificate import (
    Certificate,
    CertificateError,
    Gap,
    load,
    name_layers,
    summarise,
    to_json,
)
from tests.paper.certificates import make_certificate, make_result
from tests.report.test_json_schemas import changed, fits

GAP = Gap("k head", (3,), "norms span heads")


def test_a_certificate_that_passes_says_so_in_one_line() -> None:
    certificate = make_certificate(make_result("q", deviation=0.123), make_result("k group", read=0.4))
    assert certificate.failures == []
    assert certificate.deviation == 0.5  # the reads of q
    sentence = f"Certified: 2 sites, largest deviation 0.5 of the allowance, transformers {_transformers(certificate)}"
    assert list(certificate.lines())[-1] == certificate.sentence == sentence
    assert make_certificate().n_sites == 2  # k in both scopes counts once
    assert make_certificate(layers=(0, 1, 3)).sentence.startswith("Certified at layers 0-1, 3: 2 sites")


def _transformers(certificate: Certificate) -> str:
    return certificate.versions["transformers"]


@pytest.mark.parametrize(
    ("fields", "result", "failure"),
    [
        ({"replay": 3.0}, {}, "a replay without a change is off by 3 allowances"),
        ({"attention": 1.5}, {}, "the attention of the reference is off by 1.5 allowances"),
        ({"errors": (Gap("z", (1, 2), "KeyError: 'z'"),)}, {}, "z: the edit at layers 1-2 fails (KeyError: 'z')"),
        ({}, {"deviation": 1.01}, "q: the edit at layer 1 is off by 1.01 allowances at token 7 from a full forward"),
        ({}, {"effect": 1.0}, "q: no edit at layers 0-2, 5 changes the output"),
        ({}, {"read": 2.0}, "q: the values that are read are off by 2 allowances"),
        ({}, {"deviation": float("nan")}, "q: the edit at layer 1 is off by nan allowances"),
    ],
)
def test_everything_wrong_is_a_failure(fields: dict[str, Any], result: dict[str, Any], failure: str) -> None:
    certificate = make_certificate(make_result("q", **result), **fields)
    (sentence,) = certificate.failures
    assert sentence.startswith(failure)
    assert sentence.partition("; ")[2].startswith(("do not rely on", "certify more layers", "add to"))
    assert not certificate.is_passed
    assert list(certificate.lines())[-2:] == [f"wrong: {sentence}", "Not certified"]
    assert certificate.sentence == f"Not certified: {sentence}"


def test_the_text_names_the_model_its_gaps_and_its_silent_layers() -> None:
    text = "\n".join(make_certificate(make_result("q", silent=(0, 1)), gaps=(GAP,)).lines())
    assert text.startswith("owner/name: LlamaForCausalLM, fingerprint 0123abcd0123\n")
    assert "\nlayers 6, heads 4 or 8, norms pre\n" in text
    assert "\nq                 0-2, 5            0.2500  layer 1 token 7            300    0.5000\n" in text
    assert "\nnot supported: k head at layer 3: norms span heads\n" in text
    assert "\nno visible effect: q at layers 0-1\n" in text
    assert "\nno visible effect" not in "\n".join(make_certificate().lines())


@pytest.mark.parametrize(
    ("layers", "name"), [((3,), "layer 3"), ((0, 1, 2, 5, 7, 8), "layers 0-2, 5, 7-8"), ((1, 3), "layers 1, 3")]
)
def test_layers_are_named_as_ranges(layers: tuple[int, ...], name: str) -> None:
    assert name_layers(layers) == name


def test_the_file_fits_the_schema_and_is_read_again(tmp_path: Path) -> None:
    certificate = make_certificate(gaps=(GAP,))
    path = tmp_path / "c.json"
    path.write_text(to_json(certificate), "utf-8")
    assert load(path) == certificate
    content = json.loads(path.read_text("utf-8"))
    assert fits("certificate", content)
    for change in (
        lambda own: own.pop("sites"),
        lambda own: own.update(schema=2),
        lambda own: own.update(layers="all"),
        lambda own: own["sites"][0].update(deviation="small"),
        lambda own: own["gaps"][0].pop("reason"),
    ):
        broken = changed(content, change)
        assert not fits("certificate", broken)
        path.write_text(json.dumps(broken), "utf-8")
        with pytest.raises(CertificateError, match="run `rebinding certify` again"):
            load(path)


def test_the_summary_of_a_report_is_plain() -> None:
    summary = summarise(make_certificate(gaps=(GAP,)))
    assert json.loads(json.dumps(summary)) == summary
    assert summary["is_passed"] is True
    assert summary["not_supported"] == ["k head at layer 3: norms span heads"]
