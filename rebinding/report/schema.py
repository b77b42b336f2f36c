"""`claims.json` has schema 2; what schema 1 lacks is worked out from it, so that an old report can be read and kept.

Schema 2 says what a reader of schema 1 had to find out: where a row stands in the paper, its letter, what became of a
sentence under both procedures. It also has two things that schema 1 does not know, and that nobody can work out
afterwards: the first pair of prompts of each experiment, and the graph of a search that was not told where to look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rebinding.paper.rows.order import place
from rebinding.report.outline import section_of
from rebinding.verdicts.standing import standing

SCHEMA = 2
READ = (1, SCHEMA)
LETTERS: Mapping[str, str] = {
    "REPLICATED": "R", "NOT REPLICATED": "N", "INCONCLUSIVE": "?", "INVALID": "!", "NOT APPLICABLE": "–",
    "REPORTED": "·",
}  # fmt: skip
DERIVED: Mapping[str, Any] = {"section": str, "place": int, "letter": str, "standing": str | None}
"""Fields of a row that follow from others: written for those who read the file, and not read again."""


def lines(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows, each with what follows from it, and from its twin under the other procedure."""
    twins: dict[tuple[str, str], dict[bool, str]] = {}
    for one in rows:
        sentence = one.get("sentence") or one["id"]
        twins.setdefault((one["model"], sentence), {})[one["id"] != sentence] = one.get("verdict", "")
    return [_line(one, twins[one["model"], one.get("sentence") or one["id"]]) for one in rows]


def _line(fields: Mapping[str, Any], twins: Mapping[bool, str]) -> dict[str, Any]:
    id, letter = fields["id"], LETTERS.get(fields.get("verdict", ""), "")
    name = standing(twins[False], twins[True]) if len(twins) == 2 else None
    return {**fields, "section": section_of(id), "place": place(id), "letter": letter, "standing": name}


def without(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A row without that."""
    return {name: value for name, value in fields.items() if name not in DERIVED}


def upgraded(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a checked `claims.json` as schema 2 has it; of schema 2 as it is."""
    if content["schema"] == SCHEMA:
        return dict(content)
    models = [_model(one) for one in content.get("models", [])]
    return {**content, "schema": SCHEMA, "models": models, "claims": lines(content["claims"])}


def _model(about: Mapping[str, Any]) -> dict[str, Any]:
    evidence = {label: {**entry, "pair": None} for label, entry in about.get("evidence", {}).items()}
    return {**about, "evidence": evidence, "graph": None}
