"""Cards, read as they were written."""

from __future__ import annotations

import json
from pathlib import Path

from rebinding.learned.card import FILE, Card, Digest, Licence
from rebinding.learned.curriculum import Recipe
from rebinding.learned.evaluation import Accuracy
from rebinding.learned.training import Step


def read_card(folder: Path) -> Card:
    """Read a card."""
    content = json.loads((folder / FILE).read_text("utf-8"))
    return Card(
        content["base"],
        Digest(**content["base_digest"]),
        Licence(content["license"], content["base_license"]),
        Recipe(**content["recipe"]),
        tuple(Step(loss, right) for loss, right in content["curve"]),
        {name: Accuracy(*pair) for name, pair in content["before"].items()},
        {name: Accuracy(*pair) for name, pair in content["marks"].items()},
    )
