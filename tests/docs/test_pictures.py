"""Pictures of the docs are not older than the code that decides how they look."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load_pictures() -> ModuleType:
    """`docs/figures/pictures.py`, which is in no package."""
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "docs" / "figures" / "pictures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their module
    spec.loader.exec_module(module)
    return module


PICTURES = load_pictures()


@pytest.mark.parametrize("name", PICTURES.GROUPS)
def test_pictures_are_as_new_as_their_code(name: str) -> None:
    report = " REPORT" if name == "pages" else ""
    recorded, now = PICTURES.read_record().get(name), PICTURES.digest(PICTURES.GROUPS[name])
    assert recorded == now, f"made with other code; make them again: python docs/figures/pictures.py {name}{report}"


@pytest.mark.parametrize("name", PICTURES.GROUPS)
def test_another_byte_makes_them_old(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any of the files; each pattern names at least one."""
    group = PICTURES.GROUPS[name]
    for pattern in group.files:
        for path in ROOT.glob(pattern):
            (tmp_path / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path.relative_to(ROOT)).write_bytes(path.read_bytes())
    before = PICTURES.digest(group)
    monkeypatch.setattr(PICTURES, "ROOT", tmp_path)
    assert PICTURES.digest(group) == before
    for pattern in group.files:
        path = next(tmp_path.glob(pattern))
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert PICTURES.digest(group) != before
        path.write_bytes(content)


def test_every_picture_of_the_docs_is_made_by_a_command() -> None:
    """All that pages show, and no other."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = {name for page in pages for name in re.findall(r"figures/([\w-]+)\.png", page.read_text("utf-8"))}
    made = {picture for group in PICTURES.GROUPS.values() for picture in group.pictures}
    assert shown == made | set(PICTURES.OF_REPORTS)
    assert shown == {path.stem for path in (ROOT / "docs" / "figures").glob("*.png")}
