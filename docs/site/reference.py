"""The reference: a page for every room of the package, on it every module with its docstrings."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import rebinding

MODULE = """## {name}

```{{eval-rst}}
.. automodule:: {name}
   :members:
   :undoc-members:
   :ignore-module-all:
```
"""


def modules() -> dict[str, list[str]]:
    """Every module by its room; what stands in no room is `rebinding` itself."""
    root = Path(rebinding.__file__).parent
    packages: dict[str, list[str]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        if path.name != "__main__.py":
            packages[name.split(".")[1] if "." in name else name].append(name)
    return dict(packages)


def write_reference(parent: Path) -> None:
    """Pages that are not as they were; others stay, so that only what changed is built again."""
    folder = parent / "reference"
    folder.mkdir(exist_ok=True)
    packages = modules()
    for path in folder.glob("*.md"):
        if path.stem not in packages:
            path.unlink()
    for package, names in packages.items():
        title = package if package == "rebinding" else f"rebinding.{package}"
        write(folder / f"{package}.md", "\n".join([f"# {title}", "", *(MODULE.format(name=name) for name in names)]))


def write(path: Path, text: str) -> None:
    """Write a page if it says something else than before."""
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, "utf-8")
