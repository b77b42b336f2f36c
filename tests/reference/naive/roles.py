"""Head roles: a group's outputs or attention at one token, from the counterfactual into the original."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.oracles.by_hand.plain_model import Put
from tests.reference.naive.prompts import Record
from tests.reference.naive.runs import FORMS, Entry, Head, Naive, entry

SITES = {
    "A": "colon",
    "B": "colon",
    "C": "question_box",
    "D": "swap_partner_box",
    "E": "context_partner_box",
}
DESIGNS = {"content_control": "head_roles/payload_prompt", "pointer": "head_roles/pointer_prompt"}


def interchanged(naive: Naive, group: str, kind: str, heads: Sequence[Head], ids: Sequence[int]) -> Entry:
    """Logits of both words in the original, the patched and the counterfactual run."""
    own_design, other_design, site = "head_roles/original", DESIGNS[kind], SITES[group]
    pairs = [(naive.records[own_design][number], naive.records[other_design][number]) for number in ids]
    puts = [_puts(naive, group, site, heads, own, other) for own, other in pairs]
    patched, _ = naive.logits([(own, edits) for (own, _), edits in zip(pairs, puts, strict=True)])
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
            [float(put.value[own["roles"][site] + 1 :].sum()) for put in rows]
            for (own, _), rows in zip(pairs, puts, strict=True)
        ]
    settings = {"group": group, "heads": [list(head) for head in heads], "site": site}
    settings |= {"original": f"design {own_design}", "counterfactual": f"design {other_design}"}
    settings |= {"patch": "z of the heads at the site" if group == "A" else "attention pattern row of the heads"}
    return entry(f"head_roles/{group}/{kind}", settings, ids, value)


def _puts(naive: Naive, group: str, site: str, heads: Sequence[Head], own: Record, other: Record) -> list[Put]:
    """For A the heads' outputs; for the others their rows of attention, which weigh the original's values."""
    here, there = own["roles"][site], other["roles"][site]
    if group == "A":
        return [Put("z", layer, here, naive.at(other, "z", (layer, head), there), head) for layer, head in heads]
    rows = naive.clean(other).attention
    return [Put("pattern", layer, here, rows[layer][0, head, there], head) for layer, head in heads]


def _words(kind: str) -> tuple[Any, Any]:
    """The measured word and the other one: the counterfactual's answer, and what the asked box of the original holds
    before the swap."""

    def pointed(own: Record, other: Record) -> str:
        return str(own["objects"][own["boxes"].index(own["question"])])

    def new(own: Record, other: Record) -> str:
        return str(other["answer"])

    return (new, pointed) if kind == "content_control" else (pointed, new)


def _row(naive: Naive, number: int, pair: tuple[Record, Record], after: Any, word: Any, field: str) -> dict[str, Any]:
    own, other = pair
    token = {**other[field], **own[field]}[word(own, other)]
    before, counterfactual = (naive.clean(record).logits[0] for record in pair)
    logits = {"original": before, "patched": after, "counterfactual_run": counterfactual}
    return {"id": number, "token": token, **{name: float(line[token]) for name, line in logits.items()}}
