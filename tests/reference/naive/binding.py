"""Query and key interventions: shifts along differences of means, with shared keys and with isolated ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.reference.naive.edits import mean_vectors, noise_of, shared_edit
from tests.reference.naive.patching import FORMS, Entry, Naive, entry, tokens
from tests.reference.naive.plain_model import Head, Put, Site
from tests.reference.naive.prompts import Record

SEEDS = {"random_query": 1006, "random_key_for_slot_j": 1007, "random_key_for_slot_i": 1008}
"""As published."""
EVALUATION, DIRECTION = "qk_intervention/evaluation", "qk_intervention/direction/slot"
SCOPES = ("shared_keys", "isolated_heads")
CONDITIONS = {
    "no_intervention": (),
    "query_shift": ("real q",),
    "source_swap": ("real k",),
    "both_restore": ("real q", "real k"),
    "random_query_shift": ("random q",),
    "random_source_swap": ("random k",),
    "random_both": ("random q", "random k"),
}
"""What is added in each."""
EPS = 1e-9


class Shifts:
    """The vectors of some heads and kinds of key tokens, from slot i to slot j."""

    def __init__(self, naive: Naive, heads: Sequence[Head], kinds: Sequence[str], i: int, j: int) -> None:
        self.naive, self.heads, self.kinds, self.i, self.j = naive, list(heads), list(kinds), i, j
        slots = range(sum(design.startswith(DIRECTION) for design in naive.records))
        self.q = torch.stack([self._mean("q", slot) for slot in slots])  # (slot, head, head_dim)
        self.k = torch.stack([self._mean("k", slot) for slot in slots])
        real = {"q": self.q[j] - self.q[i], "j": self.k[i] - self.k[j], "i": self.k[j] - self.k[i]}
        seeds = zip(real.items(), SEEDS.values(), strict=True)
        random = {name: noise_of(self.heads, vectors, seed) for (name, vectors), seed in seeds}
        self.added_vectors = {"real": real, "random": random}

    def _mean(self, site: Site, slot: int) -> Tensor:
        records = self.naive.records[f"{DIRECTION}{slot}"].values()
        places = [
            (tokens(record), at)
            for record in records
            for at in ([record["roles"]["colon"]] if site == "q" else self.keys(record, slot))
        ]
        return mean_vectors(self.naive.plain, site, self.heads, places)

    def keys(self, record: Record, slot: int) -> list[int]:
        """The tokens of a slot."""
        return [record["roles"][f"context_{kind}"][slot] for kind in self.kinds]

    def puts(self, record: Record, condition: str, scope: str) -> list[Put]:
        """What a condition adds in a prompt."""
        puts = []
        for source, site in (name.split() for name in CONDITIONS[condition]):
            if site == "q":
                by_head = dict(zip(self.heads, self.added_vectors[source]["q"], strict=True))
                puts += _puts("q", by_head, [record["roles"]["colon"]])
                continue
            for name, slot in (("j", self.j), ("i", self.i)):
                vectors = self.added_vectors[source][name]
                by_head = dict(zip(self.heads, vectors, strict=True))
                shared = scope == "shared_keys"
                edits = shared_edit(self.naive.plain, self.heads, vectors) if shared else by_head
                puts += _puts("k", edits, self.keys(record, slot))
        return puts


def _puts(site: Site, vectors: Mapping[Head, Tensor], places: Sequence[int]) -> list[Put]:
    return [Put(site, layer, at, vector, head, True) for (layer, head), vector in vectors.items() for at in places]


def shifted(naive: Naive, heads: Sequence[Head], kinds: str, i: int, j: int) -> Iterator[Entry]:
    """All entries of a kind setting."""
    shifts = Shifts(naive, heads, kinds.split(","), i, j)
    settings = {"heads": [list(head) for head in heads], "i": i, "j": j, "alpha": 1.0, "kinds": kinds}
    settings |= {"evaluation": f"design {EVALUATION}"}
    yield entry(f"qk_intervention/{kinds}/directions", settings, naive.records[f"{DIRECTION}0"], _vectors(shifts))
    for scope in SCOPES:
        for condition in CONDITIONS:
            name = f"qk_intervention/{kinds}/{scope}/{condition}"
            fields = {**settings, "condition": condition, "key_scope": scope}
            yield entry(name, fields, naive.records[EVALUATION], _measured(shifts, condition, scope))


def _vectors(shifts: Shifts) -> dict[str, Any]:
    random = shifts.added_vectors["random"]

    def by_head(values: Tensor) -> dict[str, Any]:
        return {f"{layer},{head}": value.tolist() for (layer, head), value in zip(shifts.heads, values, strict=True)}

    return {
        "muQ": {str(slot): by_head(means) for slot, means in enumerate(shifts.q)},
        "muK": {str(slot): by_head(means) for slot, means in enumerate(shifts.k)},
        **{field: by_head(random[name]) for field, name in zip(SEEDS, ("q", "j", "i"), strict=True)},
    }


def _measured(shifts: Shifts, condition: str, scope: str) -> dict[str, Any]:
    i, j = shifts.i, shifts.j
    rows = _rows(shifts, condition, scope)
    masses = [(row["M_before"][key], row["M_after"][key]) for row in rows for key in row["M_before"]]

    def ratio(mass: Sequence[float]) -> float:
        return math.log(mass[j] + EPS) - math.log(mass[i] + EPS)

    def lead(row: dict[str, Any], moment: str, form: str) -> float:
        logits = row[f"object_logits_{moment}"][form]
        return float(logits[j] - logits[i])

    switched = [before.index(max(before)) == i and after.index(max(after)) == j for before, after in masses]
    return {
        "dR": sum(ratio(after) - ratio(before) for before, after in masses) / len(masses),
        "switch": sum(switched) / len(masses),
        "dlogit": {
            form: sum(lead(row, "after", form) - lead(row, "before", form) for row in rows) / len(rows)
            for form in FORMS
        },
        "smallest_relative_gap_of_the_largest_M": min(
            _gap(mass) for masses_of_prompt in masses for mass in masses_of_prompt
        ),
        "per_prompt": rows,
    }


def _gap(mass: Sequence[float]) -> float:
    """By how much, of its own size, the largest attention exceeds the next."""
    largest, second = sorted(mass, reverse=True)[:2]
    return (largest - second) / largest


def _rows(shifts: Shifts, condition: str, scope: str) -> list[dict[str, Any]]:
    """Attention on every slot and logits of its object, without the edit and with it, prompt by prompt."""
    naive, records = shifts.naive, shifts.naive.records[EVALUATION].values()
    runs = [(tokens(record), shifts.puts(record, condition, scope)) for record in records]
    edited = naive.plain.run(runs, attention=True)
    rows = []
    for line, record in enumerate(records):
        row: dict[str, Any] = {"id": record["id"]}
        for moment, run, at in (("before", naive.clean(record), 0), ("after", edited, line)):
            row[f"M_{moment}"] = {
                f"{layer},{head}": _masses(shifts, record, run.attention[layer][at, head])
                for layer, head in shifts.heads
            }
            row[f"object_logits_{moment}"] = {
                form: [float(run.logits[at, record[field][word]]) for word in record["objects"]]
                for form, field in FORMS.items()
            }
        rows.append(row)
    return rows


def _masses(shifts: Shifts, record: Record, attention: Tensor) -> list[float]:
    """A head's attention (query, key) from the colon to the tokens of every slot."""
    row = attention[record["roles"]["colon"]]
    return [float(row[shifts.keys(record, slot)].sum()) for slot in range(len(record["boxes"]))]
