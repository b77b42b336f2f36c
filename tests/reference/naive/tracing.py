"""Residual tracing: the input of a decoder layer at one token, from the original into the counterfactual."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tests.reference.naive.edits import residuals
from tests.reference.naive.prompts import Record
from tests.reference.naive.runs import Entry, Naive, entry, tokens

ORIGINALS = "exp1/original"


def candidates(record: Record) -> tuple[list[int], int]:
    """The spaced tokens of the objects in the boxes after the swap, and which of them is the answer."""
    words = [record["state_after_swap"][box] for box in record["boxes"]]
    return [record["object_token_with_space"][word] for word in words], words.index(record["answer"])


def margins(logits: Tensor, record: Record) -> Tensor:
    """By how much the answer leads over the other objects of an original (run,)."""
    objects, answer = candidates(record)
    lead = logits[:, objects]
    rivals = [lead[:, place] for place in range(len(objects)) if place != answer]
    return lead[:, answer] - torch.stack(rivals).amax(0)


def filtered(naive: Naive, keep: int) -> Entry:
    """Which originals are answered correctly, and the first `keep` of them."""
    records = naive.records[ORIGINALS]
    lead = [float(margins(naive.clean(record).logits, record)) for record in records.values()]
    selected = [number for number, margin in zip(records, lead, strict=True) if margin > 0][:keep]
    assert len(selected) == keep, (
        f"{len(selected)} originals are answered correctly, and {keep} are wanted; take more ids"
    )
    value = {
        "candidate_ids": list(records),
        "correct": [int(m > 0) for m in lead],
        "margin": lead,
        "kept_ids": selected,
    }
    return entry("exp1/filter", {"split": "test"}, records, value)


def traced(naive: Naive, mode: str, ids: Sequence[int], description: str = "") -> Iterator[Entry]:
    """The three entries of a mode."""
    design = f"exp1/counterfactual/{mode.split('/')[1]}"
    settings = {"mode": mode, "description": description}
    settings |= {"originals": f"design {ORIGINALS}", "counterfactuals": f"design {design}"}
    pairs = [(naive.records[ORIGINALS][number], naive.records[design][number]) for number in ids]
    maps = [_maps(naive, *pair) for pair in pairs]
    lead = torch.stack([margin for margin, _ in maps])  # (prompt, layer, token)
    answer = torch.stack([logit for _, logit in maps])
    base = [float(margins(naive.clean(counterfactual).logits, original)) for original, counterfactual in pairs]
    hits = (lead > 0).int()
    value = {
        "per_prompt_hits": [["".join(map(str, cell)) for cell in line] for line in hits.permute(1, 2, 0).tolist()],
        "mean_margin": lead.mean(0).tolist(),
        "smallest_absolute_margin": float(lead.abs().min()),
        "unpatched_counterfactual_hits": [int(margin > 0) for margin in base],
        "unpatched_counterfactual_margin": base,
    }
    total = hits.sum(0)
    by_cell = {"hits": total.tolist(), "iia": (total / len(pairs)).tolist()}
    yield entry(f"exp1/{mode}/hits", settings, ids, by_cell)
    yield entry(f"exp1/{mode}/mean_exp_logit", settings, ids, answer.double().exp().mean(0).tolist())
    yield entry(f"exp1/{mode}/per_prompt", settings, ids, value)


def _maps(naive: Naive, original: Record, counterfactual: Record) -> tuple[Tensor, Tensor]:
    """Lead and logit of the original's answer in every patched run (layer, token)."""
    plain = naive.plain
    cells = [(layer, token) for layer in range(len(plain.layers)) for token in range(original["length"])]
    logits = plain.run([(tokens(counterfactual), residuals(plain, tokens(original), [cell])) for cell in cells]).logits
    objects, answer = candidates(original)
    shape = (len(plain.layers), original["length"])
    return margins(logits, original).view(shape), logits[:, objects[answer]].view(shape)
