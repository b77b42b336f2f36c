"""Head roles: a group's outputs or attention at one token, from the counterfactual into the original."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.reference.naive.edits import interchanged
from tests.reference.naive.plain_model import Head
from tests.reference.naive.prompts import Record
from tests.reference.naive.runs import FORMS, Entry, Naive, entry, tokens

SITES = {
    "A": "colon",
    "B": "colon",
    "C": "question_box",
    "D": "swap_partner_box",
    "E": "context_partner_box",
}
DESIGNS = {"content_control": "head_roles/payload_prompt", "pointer": "head_roles/pointer_prompt"}


def exchanged(naive: Naive, group: str, kind: str, heads: Sequence[Head], ids: Sequence[int]) -> Entry:
    """Logits of both words in the original, the patched and the counterfactual run."""
    own_design, other_design, site = "head_roles/original", DESIGNS[kind], SITES[group]
    pairs = [(naive.records[own_design][number], naive.records[other_design][number]) for number in ids]
    puts = [
        interchanged(
            naive.plain, tokens(other), heads, other["roles"][site], original["roles"][site], outputs=group == "A"
        )
        for original, other in pairs
    ]
    runs = [(tokens(original), edits) for (original, _), edits in zip(pairs, puts, strict=True)]
    patched = naive.plain.run(runs).logits
    value: dict[str, Any] = {form: {} for form in FORMS}
    for form, field in FORMS.items():
        for suffix, word in zip(("", "_of_the_other_word"), _words(kind), strict=True):
            rows = [
                _row(naive, number, pair, after, word, field)
                for number, pair, after in zip(ids, pairs, patched, strict=True)
            ]
            value[form][f"delta{suffix}"] = sum(row["patched"] - row["original"] for row in rows) / len(rows)
            value[form][f"per_prompt{suffix}"] = rows
    if group != "A":
        value["attention_mass_on_later_keys"] = [
            [float(put.value[original["roles"][site] + 1 :].sum()) for put in rows]
            for (original, _), rows in zip(pairs, puts, strict=True)
        ]
    settings = {"group": group, "heads": [list(head) for head in heads], "site": site}
    settings |= {"original": f"design {own_design}", "counterfactual": f"design {other_design}"}
    settings |= {"patch": "z of the heads at the site" if group == "A" else "attention pattern row of the heads"}
    return entry(f"head_roles/{group}/{kind}", settings, ids, value)


def _words(kind: str) -> tuple[Any, Any]:
    """The measured word and the other one: the counterfactual's answer, and what the asked box of the original holds
    before the swap."""

    def pointed(original: Record, counterfactual: Record) -> str:
        return str(original["objects"][original["boxes"].index(original["question"])])

    def new(original: Record, counterfactual: Record) -> str:
        return str(counterfactual["answer"])

    return (new, pointed) if kind == "content_control" else (pointed, new)


def _row(naive: Naive, number: int, pair: tuple[Record, Record], after: Any, word: Any, field: str) -> dict[str, Any]:
    original, swapped = pair
    token = {**swapped[field], **original[field]}[word(original, swapped)]
    before, counterfactual = (naive.clean(record).logits[0] for record in pair)
    logits = {"original": before, "patched": after, "counterfactual_run": counterfactual}
    return {"id": number, "token": token, **{name: float(line[token]) for name, line in logits.items()}}
