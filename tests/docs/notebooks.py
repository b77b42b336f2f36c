"""Notebooks run without Jupyter: cells one after the other in one namespace, with what they print and show.

`python -m tests.docs.notebooks` runs those of docs/tutorials and stores what came out in them.
"""

from __future__ import annotations

import ast
import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tests.docs.handlers import check_errors_shown, run_with_handlers

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
DPI = 80
Output: TypeAlias = dict[str, Any]
"""An output as notebook files have it."""


def read(path: Path) -> dict[str, Any]:
    """A notebook as it stands in its file."""
    notebook: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return notebook


def code(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that are run."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def prose(path: Path) -> str:
    """What stands between the cells of code."""
    return "\n\n".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")


def run(notebook: dict[str, Any]) -> list[list[Output]]:
    """What every cell of code gives, in an interpreter that has run those before it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [run_cell("".join(cell["source"]), names) for cell in code(notebook)]


def run_cell(source: str, names: dict[str, Any]) -> list[Output]:
    """What is printed, and what the last line is worth if it is an expression; errors that are handled are printed."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        errors = run_with_handlers(tree, names, "<cell>")
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    check_errors_shown(errors, printed.getvalue(), "<cell>")
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(keepends=True)}
        )
    return outputs if value is None else [*outputs, display(value)]


def display(value: object) -> Output:
    """A picture for a figure or its axes, else its text; for a table the text and what a browser makes of it."""
    value = value.figure if isinstance(value, Axes) else value
    if isinstance(value, Figure):
        image = io.BytesIO()
        value.savefig(image, format="png", dpi=DPI, metadata={"Software": None})
        data = {"image/png": base64.b64encode(image.getvalue()).decode()}
        return {"output_type": "display_data", "data": data, "metadata": {}}
    content: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if hasattr(value, "_repr_html_"):
        content["text/html"] = value._repr_html_().splitlines(keepends=True)
    return {"output_type": "execute_result", "data": content, "metadata": {}}


def store(path: Path) -> None:
    """Run a notebook, and write what came out into its file."""
    notebook = read(path)
    for number, (cell, outputs) in enumerate(zip(code(notebook), run(notebook), strict=True), start=1):
        cell["execution_count"] = number
        numbered = {"execute_result": {"execution_count": number}}
        cell["outputs"] = [{**output, **numbered.get(output["output_type"], {})} for output in outputs]
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    for tutorial in TUTORIALS:
        store(tutorial)
        print(tutorial.name)
