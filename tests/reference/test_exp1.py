"""The unmodified model's logits, and residual tracing, against the reference numbers: the filter, every mode's map."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from rebinding.experiments.tokens import token_batch
from rebinding.experiments.tracing.maps import TracedPair, candidate_logits, correct_ones, trace
from rebinding.surgery import Read
from tests.reference.pack import ABSOLUTE, Agrees, Pack

HITS = "/hits"
RAW = 1e-4
"""Agreement of raw float32 logits that the packs' authors suggest."""


def maps(pack: Pack) -> list[str]:
    """The modes of the pack: names without what is measured."""
    return [name.removesuffix(HITS) for name in pack.starting("exp1/") if name.endswith(HITS)]


def design(settings: dict, side: str) -> str:
    return settings[side].removeprefix("design ")


def make_pairs(pack: Pack, originals: str, counterfactuals: str, ids: list[int]) -> list[TracedPair]:
    """Pairs with the answer tokens that the pack names."""
    records, counterfactual_records = pack.raw(originals), pack.raw(counterfactuals)
    sides = zip(ids, pack.prompts(originals, ids), pack.prompts(counterfactuals, ids), strict=True)
    pairs = []
    for number, original, counterfactual in sides:
        record, spaced = records[number], records[number]["object_token_with_space"]
        objects = [record["state_after_swap"][box] for box in record["boxes"]]
        counterfactual_record = counterfactual_records[number]
        rival = (
            None
            if counterfactual_record["answer"] is None
            else counterfactual_record["object_token_with_space"][counterfactual_record["answer"]]
        )
        tokens = tuple(spaced[item] for item in objects)
        pairs.append(TracedPair(number, original, counterfactual, tokens, objects.index(record["answer"]), rival))
    return pairs


def grid(rows: pd.DataFrame, values: pd.Series) -> np.ndarray:
    """(prompt, layer, token)."""
    keys = [rows["prompt"], rows["layer"], rows["token"]]
    shape = [key.nunique() for key in keys]
    return values.to_numpy().reshape(shape)


def test_logits_equal_the_pack(pack: Pack, agrees: Agrees) -> None:
    """Logits at the readout over the whole vocabulary, and the best token at every position."""
    entries = pack.entries["forward_check"]["value"]
    for entry in entries:
        tokens = token_batch(pack.prompts(entry["design"], [entry["id"]]))
        (logits,) = pack.surgeon.run(pack.surgeon.record(tokens), [], [Read("logits", at=range(tokens.shape[1]))])
        agrees("forward", logits[0, -1].numpy(), entry["logits_at_colon"], absolute=RAW)
        first, second = logits[0].topk(2).values.unbind(dim=-1)  # (token,)
        clear = first - second > 2 * RAW
        assert clear.float().mean() > 0.9
        assert torch.equal(logits[0].argmax(-1)[clear], torch.tensor(entry["argmax_per_position"])[clear])


def test_kept_prompts_equal_the_pack(pack: Pack, agrees: Agrees) -> None:
    """Which originals are answered correctly, by how much, and which are kept."""
    entry = pack.entries["exp1/filter"]
    originals = design(pack.entries[maps(pack)[0] + HITS]["settings"], "originals")
    pairs = make_pairs(pack, originals, originals, entry["value"]["candidate_ids"])
    candidates = torch.tensor([pair.candidates for pair in pairs])
    logits = candidate_logits(pack.surgeon, [pair.original for pair in pairs], candidates)
    answers = torch.tensor([pair.answer for pair in pairs])[:, None]
    rivals = logits.scatter(1, answers, float("-inf")).amax(dim=1)
    margin = (logits.gather(1, answers)[:, 0] - rivals).numpy()
    assert abs(margin).min() > ABSOLUTE, "which are answered would be a matter of rounding"
    assert (logits.argmax(dim=1) == answers[:, 0]).int().tolist() == entry["value"]["correct"]
    kept_ids = entry["value"]["kept_ids"]
    assert [pair.id for pair in correct_ones(pack.surgeon, iter(pairs), len(kept_ids))] == kept_ids
    agrees("tracing filter", margin, entry["value"]["margin"])


def test_maps_equal_the_pack(pack: Pack, agrees: Agrees) -> None:
    """Hits of every cell and prompt, but for ties; margins and exponentiated logits within the suggested tolerance."""
    assert maps(pack), "the pack holds no tracing"
    for name in maps(pack):
        entry = pack.entries[name + HITS]
        settings = entry["settings"]
        pairs = make_pairs(pack, design(settings, "originals"), design(settings, "counterfactuals"), entry["ids"])
        rows = trace(pack.surgeon, pairs, mode=settings["mode"]).rows
        hits = grid(rows, rows["hit"])
        expected = pack.entries[f"{name}/per_prompt"]["value"]
        expected_hits = np.array([[list(map(int, cell)) for cell in line] for line in expected["per_prompt_hits"]])
        assert expected_hits.sum(axis=2).tolist() == entry["value"]["hits"], name
        clear = abs(grid(rows, rows["margin"])) > ABSOLUTE  # (prompt, layer, token)
        assert clear.mean() > 0.99
        assert (hits == expected_hits.transpose(2, 0, 1))[clear].all(), name
        first = rows.groupby("prompt", sort=False).first()
        assert first["base_margin"].abs().min() > ABSOLUTE
        assert first["base_hit"].astype(int).tolist() == expected["unpatched_counterfactual_hits"], name
        label, exponentiated = f"tracing {settings['mode']}", np.exp(grid(rows, rows["answer_logit"].astype(float)))
        agrees(label, grid(rows, rows["margin"]).mean(axis=0), expected["mean_margin"])
        agrees(label, first["base_margin"].to_numpy(), expected["unpatched_counterfactual_margin"])
        agrees(label, exponentiated.mean(axis=0), pack.entries[f"{name}/mean_exp_logit"]["value"])
