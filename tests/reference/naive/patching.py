"""Entries of a pack by hand: residual tracing, path patching, head roles; whole runs on the prompts of the pack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.reference.naive.edits import head_value, interchanged, receiver_logits, residuals, sender_puts
from tests.reference.naive.plain_model import ForwardPass, Head, Plain, Tokens
from tests.reference.naive.prompts import Record, Records

Entry: TypeAlias = dict[str, Any]
FORMS = {"space": "object_token_with_space", "no_space": "object_token_without_space"}
"""The names of an answer's two tokens, in `expected.json` and in `prompts.json`."""


@dataclass(frozen=True, eq=False)
class Naive:
    """A model and the prompts of a pack."""

    plain: Plain
    records: Records

    def clean(self, record: Record) -> ForwardPass:
        """Everything about an unedited run."""
        return self.plain.clean(tokens(record))


def tokens(record: Record) -> Tokens:
    return tuple(record["token_ids"])


def entry(name: str, settings: Mapping[str, Any], ids: Iterable[int], value: Any) -> Entry:
    """One entry of `expected.json`."""
    numbers = list(ids)
    fields = {"computed_with": "naive hooks", "settings": dict(settings), "n": len(numbers), "ids": numbers}
    return {"name": name, "experiment": name.split("/")[0], **fields, "formula": "see the shown pack", "value": value}


def grid(values: Tensor, naive: Naive) -> Any:
    """A number for every query head, by layer and head."""
    return values.unflatten(-1, (len(naive.plain.layers), -1)).tolist()


ORIGINALS = "exp1/original"
"""Residual tracing: the input of a decoder layer at one token, from the original into the counterfactual."""


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


Settings: TypeAlias = Mapping[str, Any]
CLEAN, CORRUPT = "path_patching/clean", "path_patching/corrupt"
"""Path patching: a head's output from the corrupt run, what receivers hear of it, and the answer's probability."""
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


SITE_OF_GROUP = {
    "A": "colon",
    "B": "colon",
    "C": "question_box",
    "D": "swap_partner_box",
    "E": "context_partner_box",
}
COUNTERFACTUALS = {"content_control": "head_roles/payload_prompt", "pointer": "head_roles/pointer_prompt"}


def exchanged(naive: Naive, group: str, kind: str, heads: Sequence[Head], ids: Sequence[int]) -> Entry:
    """Logits of both words in the original, the patched and the counterfactual run."""
    own_design, other_design, site = "head_roles/original", COUNTERFACTUALS[kind], SITE_OF_GROUP[group]
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
