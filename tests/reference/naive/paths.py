"""Path patching: a head's output from the corrupt run, what receivers hear of it, and the answer's probability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.oracles.by_hand.plain_model import Put
from tests.reference.naive.prompts import Record
from tests.reference.naive.runs import Entry, Head, Naive, entry, grid

Settings: TypeAlias = Mapping[str, Any]
CLEAN, CORRUPT = "path_patching/clean", "path_patching/corrupt"
ROUTES = (
    ("B", "colon", "q", "colon"),
    ("C", "question_box", "v", "question_box"),
    ("D", "swap_partner_box", "q", "question_box"),
    *(("D", "swap_partner_box", parts, "swap_partner_box") for parts in ("k", "v", "kv")),
    ("E", "context_partner_box", "v", "context_partner_box"),
)
"""Stage, the sender's role, the components of the receivers, and their role."""


def stages(receivers: Mapping[str, Sequence[Head]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every entry's name without its beginning, and its settings; `receivers` are given by stage."""
    direct = {"stage": "A", "sender_role": "colon", "receivers": "none"}
    yield "A", {**direct, "receiver_components": [], "receiver_role": None}
    for stage, sender, parts, receiver in ROUTES:
        heads = [list(head) for head in receivers[stage]]
        settings = {"stage": stage, "sender_role": sender, "receivers": heads}
        settings |= {"receiver_components": list(parts), "receiver_role": receiver}
        if parts == "q":
            yield f"{stage}_q", settings
        else:
            for scope in ("kv_group", "query_head"):
                yield f"{stage}_{parts}/{scope}", {**settings, "key_value_scope": scope}


def label(record: Record) -> int:
    """The spaced token of a prompt's answer."""
    return int(record["object_token_with_space"][record["answer"]])


def clean_probabilities(naive: Naive, ids: Sequence[int]) -> Entry:
    """The answer's probability in the unedited runs."""
    labels = [label(naive.records[CLEAN][number]) for number in ids]
    value = {
        name: [
            float(naive.clean(naive.records[design][number]).logits[0].softmax(-1)[token])
            for number, token in zip(ids, labels, strict=True)
        ]
        for name, design in (("p_orig", CLEAN), ("p_corrupt_run", CORRUPT))
    }
    return entry("path_patching/p_orig", {"label_token_ids": labels}, ids, value)


def patched(naive: Naive, name: str, settings: Settings, ids: Sequence[int], frozen: bool) -> Entry:
    """A stage's score for every sender."""
    pairs = [Pair(naive, naive.records[CLEAN][number], naive.records[CORRUPT][number], frozen) for number in ids]
    p_patch = torch.stack([pair.probabilities(settings) for pair in pairs])  # (prompt, head)
    p_orig = torch.tensor(clean_probabilities(naive, ids)["value"]["p_orig"])
    score = (p_patch / p_orig[:, None] - 1).mean(0)
    value = {"score": grid(score, naive), "p_patch": grid(p_patch, naive)}
    return entry(f"path_patching{'_frozen' if frozen else ''}/{name}", settings, ids, value)


@dataclass(frozen=True, eq=False)
class Pair:
    """A clean and a corrupt prompt, and whether other heads keep their clean outputs in the sender run."""

    naive: Naive
    clean: Record
    noise: Record
    frozen: bool

    def probabilities(self, settings: Settings) -> Tensor:
        """The answer's probability for every sender (head,)."""
        naive, parts = self.naive, settings["receiver_components"]
        heads = [tuple(head) for head in settings["receivers"]] if parts else []
        sites = [(part, layer) for part in parts for layer in sorted({layer for layer, _ in heads})]
        logits, values = naive.logits(
            [(self.clean, self._sent(settings["sender_role"], head)) for head in naive.heads], sites
        )
        if parts:
            place = self.clean["roles"][settings["receiver_role"]]
            hearing = [(part, head) for part in parts for head in self._hearing(part, heads, settings)]
            received = [
                [
                    Put(part, head[0], place, values[part, head[0]][line, place, naive.plain.span(head[1])], head[1])
                    for part, head in hearing
                ]
                for line in range(len(naive.heads))
            ]
            logits, _ = naive.logits([(self.clean, puts) for puts in received])
        return logits.softmax(-1)[:, label(self.clean)]

    def _sent(self, role: str, head: Head) -> list[Put]:
        """The sender's output is the corrupt run's; frozen: that of all other heads the clean run's, at every token."""
        naive = self.naive
        fixed = [Put("z", layer, slice(None), naive.clean(self.clean).values["z", layer][0]) for layer in naive.layers]
        value = naive.at(self.noise, "z", head, self.noise["roles"][role])
        return [*(fixed if self.frozen else ()), Put("z", head[0], self.clean["roles"][role], value, head[1])]

    def _hearing(self, part: str, heads: Sequence[Any], settings: Settings) -> list[Head]:
        """The query heads that see the replaced vector: with a shared key or value, all that share it."""
        if part == "q" or settings["key_value_scope"].startswith("query_head"):
            return list(heads)
        return sorted({(layer, member) for layer, head in heads for member in self.naive.plain.shares(head)})
