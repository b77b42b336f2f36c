"""What several subcommands share: help texts, checks of options, and safe printing.

Options are checked before anything is loaded or computed; each error says what was given and what to give. Foreign text
(names, and messages of libraries about files) is printed safely.

Help texts that only subcommands share are here, so that the same option has the same words everywhere.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType


def readable(text: str) -> str:
    """The text with unprintable characters, which could steer a terminal, escaped; line ends stay."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def check_number(option: str, value: float | None, *, minimum: float = 0, maximum: float = math.inf) -> None:
    """Refuse a number outside `minimum` to `maximum`, and NaN; None stands for an option that is not set."""
    if value is None or (math.isfinite(value) and minimum <= value <= maximum):
        return
    limits = f"{minimum} to {maximum}" if maximum < math.inf else f"{minimum} or more"
    raise ValueError(f"{option} {value}: give {limits}")


def check_positive(option: str, value: float | None) -> None:
    """Refuse zero, negative numbers, and infinity."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ValueError(f"{option} {value}: give a number above 0")


def check_output_file(option: str, path: Path | None, endings: Sequence[str] = ()) -> None:
    """Refuse a file that cannot be written: its folder is missing, it is a folder, or it has another ending."""
    if path is None:
        return
    if os.path.isdir(path):
        raise ValueError(f"{option} {path}: this is a folder; name a file in it")
    if not os.path.isdir(path.parent):
        raise ValueError(f"{option} {path}: there is no folder {path.parent}; make it first, or name another")
    ending = path.suffix.lower().removeprefix(".")
    if endings and ending and ending not in endings:
        raise ValueError(f"{option} {path}: a file cannot be written as {ending!r}; end with {', '.join(endings)}")


def check_output_folder(option: str, path: Path | None) -> None:
    """Refuse a folder that cannot be made because it, or a folder above it, is a file."""
    if path is None:
        return
    for folder in (path, *path.parents):
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise ValueError(f"{option} {path}: {folder} is a file; name a folder, which may be new")


def check_input_file(option: str, path: Path) -> None:
    """Refuse a file that does not exist."""
    if not os.path.isfile(path):
        raise ValueError(f"{option} {path}: there is no such file (seen from {os.getcwd()})")


def check_figure_file(option: str, path: Path | None) -> None:
    """Refuse a figure that cannot be written, also because of its format."""
    if path is None:
        return
    from matplotlib.backend_bases import FigureCanvasBase  # only if a figure is requested

    check_output_file(option, path, sorted(FigureCanvasBase.get_supported_filetypes()))


HELP: Mapping[str, str] = MappingProxyType(
    {
        "--boxes": "boxes of a story (default 3; e.g. --boxes 5)",
        "--json": "print JSON and nothing else (default: text)",
    }
)
"""Help texts of options that only subcommands share. `rebinding.study.options` declares what they share with claims."""
