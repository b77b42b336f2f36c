"""`python -m tests.report.schemas` writes the JSON Schema of `claims.json` from the models that check it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rebinding.report.schema import Content

FOLDER = Path(__file__).parents[2] / "rebinding" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def claims_schema() -> dict[str, Any]:
    """The schema of `claims.json`."""
    return {"$schema": DRAFT, **Content.model_json_schema(by_alias=True), "title": "claims.json of a report"}


def text() -> str:
    """The file."""
    return json.dumps(claims_schema(), indent=1) + "\n"


if __name__ == "__main__":
    (FOLDER / "claims.json").write_text(text(), "utf-8")
