"""Path patching: a head's output from the corrupt run, what receivers hear of it, and the answer's probability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.reference.naive.edits import head_value, receiver_logits, sender_puts
from tests.reference.naive.plain_model import Head, Plain
from tests.reference.naive.prompts import Record
from tests.reference.naive.runs import Entry, Naive, entry, grid, tokens

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
    pairs = [(naive.records[CLEAN][number], naive.records[CORRUPT][number]) for number in ids]
    p_patch = torch.stack([_probabilities(naive.plain, *pair, settings, frozen) for pair in pairs])  # (prompt, head)
    p_orig = torch.tensor(clean_probabilities(naive, ids)["value"]["p_orig"])
    score = (p_patch / p_orig[:, None] - 1).mean(0)
    value = {"score": grid(score, naive), "p_patch": grid(p_patch, naive)}
    return entry(f"path_patching{'_frozen' if frozen else ''}/{name}", settings, ids, value)


def _probabilities(plain: Plain, clean: Record, noise: Record, settings: Settings, frozen: bool) -> Tensor:
    """The answer's probability for every sender (head,)."""
    own, other = (record["roles"][settings["sender_role"]] for record in (clean, noise))
    outputs = [(head, head_value(plain, "z", tokens(noise), head, other)) for head in plain.all_heads]
    sends = [sender_puts(plain, tokens(clean), head, own, output, frozen=frozen) for head, output in outputs]
    components = settings["receiver_components"]
    logits = receiver_logits(
        plain, tokens(clean), sends, components,
        [tuple(head) for head in settings["receivers"]] if components else [],
        clean["roles"].get(settings["receiver_role"]),
        shared=not settings.get("key_value_scope", "").startswith("query_head"),
    )  # fmt: skip
    return logits.softmax(-1)[:, label(clean)]
