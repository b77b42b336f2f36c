"""`rebinding certify MODEL`: compare edits of a model with full forwards of the library, and save a certificate."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from rebinding.cli.options import HELP, check_output_file, check_output_folder, readable
from rebinding.evidence.certificates import certificate_file, save_certificate
from rebinding.evidence.store import default_root
from rebinding.models import check, load
from rebinding.paper.certificate import to_json
from rebinding.study.model_spec import parse_model
from rebinding.study.options import MODEL, declare

MAX_LAYERS = 10_000
"""No model has so many layers."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL)
    declare(parser.add_argument, "--dtype", "--device")
    parser.add_argument(
        "--revision", metavar="REV", help="commit, branch or tag of a Hub id (default: main, or the alias' own commit)"
    )
    parser.add_argument(
        "--layers", metavar="LIST", help="certify only these layers (default: all; e.g. --layers 0,12-15,31)"
    )
    declare(parser.add_argument, "--store", type=Path)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the certificate to this file (default: certificates/FINGERPRINT.json in the folder of the evidence,"
        " where reports look for it)",
    )
    parser.add_argument("--json", action="store_true", help=HELP["--json"])
    parser.epilog = "The exit code is 1 if an edit is not exact."


def run(options: argparse.Namespace) -> int:
    root = options.store or default_root()
    check_output_file("--output", options.output, ("json",))
    check_output_folder("--store", root)
    layers = None if options.layers is None else parse_layers(options.layers)
    spec = parse_model(options.model)
    dtype = options.dtype or spec.dtype
    model = load(spec.name, dtype=dtype, device=options.device, revision=options.revision)
    if layers is not None and max(layers) >= model.anatomy.n_layers:
        raise ValueError(f"--layers {options.layers}: {model.name} has layers 0 to {model.anatomy.n_layers - 1}")
    found = check(
        model.model, "certify", model.anatomy, layers=layers, has_nnsight=True, report_progress=print_progress
    )
    certificate = replace(found, model=model.name, fingerprint=model.fingerprint)
    path = options.output or certificate_file(root, model.fingerprint)
    save_certificate(certificate, path)
    if options.json:
        print(to_json(certificate), end="")
    else:
        print(readable("\n".join([*certificate.lines(), f"saved: {path}"])))
    return 0 if certificate.is_passed else 1


def print_progress(done: int, total: int) -> None:
    """Show the share of finished batches in a terminal."""
    if sys.stderr.isatty():
        print(f"\r{done} of {total} batches", end="\n" if done == total else "", file=sys.stderr, flush=True)


def parse_layers(text: str) -> list[int]:
    """The layers of a list such as 0,12-15,31."""
    layers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < MAX_LAYERS):
            raise ValueError(f"--layers {text}: give numbers and ranges from 0 on, such as 0,12-15,31")
        layers += range(int(first), int(last) + 1)
    return layers
