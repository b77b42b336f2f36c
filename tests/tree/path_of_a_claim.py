"""Print the files that a claim passes through, from its test to its number and back.

Usage: `python -m tests.tree.path_of_a_claim [CLAIM [MODEL]]`; a line per file with its length and the functions called.
Files of planted models are left out: they build the weights, which another model has on disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("claims", "fixtures", "rebinding")
LEFT_OUT = "rebinding/planted/"


class Profiler:
    """A pytest plugin that collects the code objects that are called while tests run, in call order."""

    def __init__(self) -> None:
        self.called: dict[CodeType, None] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        sys.setprofile(self._on_event)
        try:
            return (yield)
        finally:
            sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and not frame.f_code.co_name.startswith("<module"):
            self.called[frame.f_code] = None

    def files(self) -> dict[str, list[str]]:
        """Functions called in each file of the project, both in call order."""
        files: dict[str, list[str]] = {}
        for code in self.called:
            path = Path(code.co_filename)
            if not path.is_relative_to(ROOT):
                continue
            name = path.relative_to(ROOT).as_posix()
            if name.startswith(FOLDERS) and not name.startswith(LEFT_OUT):
                files.setdefault(name, []).append(code.co_qualname)
        return files


def find_files(claim: str, model: str) -> dict[str, list[str]]:
    """The files that one claim passes through on a model that is loaded for it, with the functions called there."""
    profiler = Profiler()
    arguments = ["claims", "-k", f"{claim}]", "--model", model, "--no-store", "-q", "-p", "no:cacheprovider"]
    code = pytest.main(arguments, plugins=[profiler])
    if code:
        raise SystemExit(f"pytest ended with {code} on {claim} and {model}")
    return profiler.files()


def main() -> None:
    claim, model = [*sys.argv[1:], *("binding.q_redirects", "planted:pointer")[len(sys.argv) - 1 :]]
    files = find_files(claim, model)
    sizes = {name: len((ROOT / name).read_text("utf-8").splitlines()) for name in files}
    for name, functions in files.items():
        print(f"{sizes[name]:5} {name}: {', '.join(dict.fromkeys(functions))[:150]}")
    print(f"{claim} on {model}: {len(files)} files of {sum(sizes.values())} lines")


if __name__ == "__main__":
    main()
