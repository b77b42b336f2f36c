"""`python -m tests.report.schemas` writes the JSON Schemas of reports and certificates from what checks them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rebinding.paper.certificate import Certificate
from rebinding.report.files import Content

FOLDER = Path(__file__).parents[2] / "rebinding" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, dict[str, Any]]:
    """The schemas by the names of their files."""
    return {
        "claims": Content.model_json_schema(by_alias=True) | {"title": "claims.json of a report"},
        "certificate": TypeAdapter(Certificate).json_schema() | {"title": "certificate of a model"},
    }


def text(name: str) -> str:
    """A file."""
    return json.dumps({"$schema": DRAFT, **schemas()[name]}, indent=1) + "\n"


if __name__ == "__main__":
    for name in schemas():
        (FOLDER / f"{name}.json").write_text(text(name), "utf-8")
