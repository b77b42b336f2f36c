"""Make the pictures of the docs again, and record the code that each was made with.

`python docs/figures/pictures.py tracing` runs the command of these pictures; `pages REPORT` photographs the page of a
report in Chromium (needs the extra `browser`). `pictures.json` has, for each picture, the hash of the files that decide
how it looks. `tests/docs/test_pictures.py` fails where they are no longer those, and names the command.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[2]
FOLDER = Path("docs/figures")
RECORD = ROOT / FOLDER / "pictures.json"
COLOURS = 64
"""Of a photograph: a page has few, and the file is a third of the size."""
DRAWING = ("rebinding/report/figures/figure.py",)
"""What all drawn figures share."""


@dataclass(frozen=True)
class Group:
    """Pictures that one command makes, and the files that decide how they look (patterns of the root)."""

    pictures: tuple[str, ...]
    files: tuple[str, ...]
    command: tuple[str, ...] = ()
    """Without the program; empty where pictures are photographs of a page."""


GROUPS: Mapping[str, Group] = MappingProxyType(
    {
        "pages": Group(
            ("report-desktop", "report-phone", "report-print"),
            ("rebinding/report/templates/*", "rebinding/report/headline.py"),
        ),
        "tracing": Group(
            ("tracing-combined", "tracing-modes", "tracing-readout"),
            ("rebinding/report/figures/tracing.py", "rebinding/report/figures/diagnostic.py", *DRAWING),
            ("docs/figures/draw.py", "tracing", str(FOLDER)),
        ),
        "key-dominance": Group(
            ("key-dominance",),
            ("docs/figures/draw.py", "rebinding/report/figures/binding.py", *DRAWING),
            ("docs/figures/draw.py", "key-dominance", str(FOLDER)),
        ),
        "circuit": Group(
            ("circuit-planted",),
            ("rebinding/report/figures/circuits.py", *DRAWING),
            ("-m", "rebinding", "discover", "--model", "planted:pointer@gemma2", "--samples", "36", "--figure",
             str(FOLDER / "circuit-planted.png")),
        ),
    }
)  # fmt: skip
OF_REPORTS = ("learned-graph", "learned-signatures", "evaluate-curve", "evaluate-sensitivity")
"""Made from reports on learned models, which take hours (docs/figures/learned.py; their page states the day), and by
docs/how-to/evaluate-a-circuit.md on a real model."""


def digest(group: Group) -> str:
    """The hash of the files that decide how the pictures of a group look."""
    paths = sorted(path for pattern in group.files for path in ROOT.glob(pattern) if path.is_file())
    lines = [f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in paths]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read_record() -> dict[str, str]:
    """The hash of each group when its pictures were made."""
    return dict(json.loads(RECORD.read_text("utf-8"))) if RECORD.exists() else {}


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the pictures of one group, and record the hash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("group", choices=GROUPS)
    parser.add_argument("report", type=Path, nargs="?", help="pages: the folder of a report")
    options = parser.parse_args(arguments)
    group = GROUPS[options.group]
    if group.command:
        subprocess.run([sys.executable, *group.command], cwd=ROOT, check=True)
    elif options.report is None:
        parser.error("pages needs the folder of a report: pytest claims -m headline --report REPORT makes one")
    else:
        photograph(options.report)
    record = read_record() | {options.group: digest(group)}
    RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", "utf-8")


def photograph(report: Path) -> None:
    """The first screen of a page on a wide screen and on a phone, and its first sheet on paper."""
    from PIL import Image  # comes with matplotlib
    from playwright.sync_api import sync_playwright  # of the extra `browser`

    from rebinding.report.page import render

    address = render(report).resolve().as_uri()
    chromium = os.environ.get("REBINDING_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for name, width, height, medium in (
            ("desktop", 1400, 900, "screen"), ("phone", 390, 844, "screen"), ("print", 718, 1015, "print"),
        ):  # fmt: skip
            page = browser.new_page(viewport={"width": width, "height": height})
            page.emulate_media(media="print" if medium == "print" else "screen")
            page.goto(address)
            path = ROOT / FOLDER / f"report-{name}.png"
            page.screenshot(path=path)
            Image.open(path).quantize(COLOURS).save(path, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
