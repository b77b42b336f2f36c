"""Under which licences the packages stand that are installed with this one: `python -m tests.dependencies.licences`.

Ends with status 1 if one of constraints.txt states none, or one that is not among the known.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LICENCES = (
    *("MIT", "BSD", "0BSD", "Apache", "PSF", "Python Software Foundation", "CNRI-Python", "ISC", "Zlib", "CC0", "BSL"),
    *("MPL", "Mozilla Public License 2.0"),
)
"""None of them asks anything of who only uses a package."""


def pinned() -> dict[str, str]:
    """The packages of constraints.txt, with their versions."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pairs = (line.partition("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, _, version in pairs}


def stated(package: metadata.PackageMetadata) -> str:
    """What a package says of its licence: the expression, else its classifiers, else the first line of the text."""
    classified = [
        classifier.rpartition(" :: ")[2]
        for classifier in package.get_all("Classifier") or ()
        if "License ::" in classifier
    ]
    text = [(package.get_all(name) or [""])[0] for name in ("License-Expression", "License")]
    return (text[0] or " AND ".join(classified) or text[1]).partition("\n")[0][:90]


def strange(licence: str) -> bool:
    """Whether a part of what is stated is not among the known."""
    parts = re.split(r"\s+(?:AND|OR|WITH)\s+", licence.replace("LLVM-exception", "Apache").strip("()"))
    return any(not re.match(rf"\(?(The )?([23]-Clause )?({'|'.join(LICENCES)})\b", part) for part in parts)


def installed() -> Iterator[tuple[str, str, str]]:
    """Name, version and licence of the packages that are installed here in their version (of torch in any build)."""
    expected = pinned()
    for distribution in sorted(metadata.distributions(), key=lambda distribution: distribution.name.lower()):
        if expected.get(canonicalize_name(distribution.name)) == distribution.version.partition("+")[0]:
            yield distribution.name, distribution.version, stated(distribution.metadata)


def main() -> int:
    rows = list(installed())
    for name, version, licence in rows:
        print(f"{name:28} {version:16} {licence or 'states none'}{'   <- not known' if strange(licence) else ''}")
    return int(any(strange(licence) for _, _, licence in rows))


if __name__ == "__main__":
    sys.exit(main())
