"""A second pack in the format of the shown one, made on the spot: other ids, naming order, heads, layers, tokens.

    python -m tests.reference.make_pack FOLDER

Weights are random, and every number is computed by `tests.reference.naive`. A number that a test compares exactly (a
hit, a switch, a removed component) has to lie far enough from a tie; where one does not, this stops and says which.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from rebinding.task.prompts import Encoder
from tests.reference.naive import binding, circuits, patching
from tests.reference.naive.patching import Entry, Naive, entry
from tests.reference.naive.plain_model import Head, Plain
from tests.reference.naive.prompts import IDS, MODES, SWAP_PAIR, Records, records
from tests.task.tokenizers import sentence_pieces

SEED = 0
SIZES: Mapping[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 10,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
}
TRACED = 3
"""Pairs of a mode."""
RECEIVERS: Mapping[str, tuple[Head, ...]] = {
    "B": ((1, 4), (2, 0), (2, 3)),
    "C": ((1, 0), (1, 5), (2, 2)),
    "D": ((1, 2), (2, 4), (2, 5)),
    "E": ((1, 1), (2, 3)),
}
GROUPS: Mapping[str, tuple[Head, ...]] = {
    "A": ((1, 3), (2, 5)),
    "B": ((0, 1), (2, 2)),
    "C": ((1, 0), (1, 1)),
    "D": ((0, 4), (1, 5)),
    "E": ((0, 2), (1, 3)),
}
BINDING: tuple[Head, ...] = ((1, 3), (0, 5), (2, 0), (1, 2))
"""Heads of section 5, in no order; two of them share a key."""
MEANS, PRUNING = 5, 4
"""How many of the selection prompts the means and the pruning use."""
MATRICES = {"A": "A", "B": "B_q", "C": "C_v/kv_group", "D": "D_k/kv_group", "E": "E_v/kv_group"}
"""The scores that each group's heads are selected by, and how many."""
K = {"A": 4, "B": 3, "C": 2, "D": 2, "E": 1}
RANDOM = ([["colon", 0, 3], ["question_box", 2, 1]], [["colon", 1, 2], ["swap_partner_box", 0, 5]])
MIN_GAP = 1e-3
"""How far from a tie exact numbers have to be: twenty times what `--rounding` moves logits."""


def model(vocabulary: int) -> LlamaForCausalLM:
    """A random Llama with several query heads a key, and norms that are not one."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        network = LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, **SIZES))
        for name, weight in network.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
    network.eval()
    return network


def entries(naive: Naive) -> Iterator[Entry]:
    """The file of numbers."""
    first = [("exp1/original", IDS["exp1/original"][0]), ("path_patching/clean", IDS["path_patching"][0])]
    yield entry("forward_check", {}, [number for _, number in first], [_forward(naive, *record) for record in first])
    traced = patching.filtered(naive, TRACED)
    yield traced
    for mode, description in MODES.items():
        yield from patching.traced(naive, mode, traced["value"]["kept_ids"], description)
    ids = IDS["path_patching"]
    yield patching.clean_probabilities(naive, ids)
    variants = product((False, True), patching.stages(RECEIVERS))
    stages = [patching.patched(naive, name, settings, ids, frozen) for frozen, (name, settings) in variants]
    yield from stages
    yield from _circuits(naive, {stage["name"]: stage for stage in stages})
    for group, heads in GROUPS.items():
        for kind in patching.COUNTERFACTUALS:
            yield patching.exchanged(naive, group, kind, heads, IDS["head_roles"])
    for kinds in ("box,object", "box", "object"):
        yield from binding.shifted(naive, BINDING, kinds, i=SWAP_PAIR[1], j=SWAP_PAIR[0])


def _forward(naive: Naive, design: str, number: int) -> dict[str, Any]:
    record = naive.records[design][number]
    with torch.no_grad():
        logits = naive.plain.model(torch.tensor([record["token_ids"]])).logits[0]  # (token, vocabulary)
    best = logits.argmax(-1).tolist()
    return {"design": design, "id": number, "logits_at_colon": logits[-1].tolist(), "argmax_per_position": best}


def _evaluation(naive: Naive) -> circuits.Evaluation:
    """Means over the first selection prompts."""
    records = naive.records["circuit/selection"]
    return circuits.Evaluation(naive, [records[number] for number in IDS["circuit/selection"][:MEANS]])


def _circuits(naive: Naive, scores: Mapping[str, Entry]) -> Iterator[Entry]:
    evaluation, ids = _evaluation(naive), IDS["circuit/selection"]
    shape = {"shape": list(evaluation.mean_z.shape)}
    yield entry("circuit/mean_activation", {"design": "circuit/selection"}, ids[:MEANS], shape)
    by_group = {group: scores[f"path_patching/{name}"] for group, name in MATRICES.items()}
    groups = circuits.selected(by_group, K, patching.SITE_OF_GROUP, IDS["path_patching"])
    yield groups
    circuit = [(head["group"], head["role"], head["layer"], head["head"]) for head in groups["value"]]
    for form in circuits.FORMS:
        yield from circuits.evaluated(evaluation, form, circuit, ids[:PRUNING], RANDOM)


def find_near_ties(numbers: Iterable[Entry]) -> Iterator[str]:
    """Entries in which a number that is compared exactly is closer to a tie than `MIN_GAP`."""
    for number in numbers:
        gap = min(map(abs, _gaps(number["name"], number["value"])), default=MIN_GAP)
        if gap < MIN_GAP:
            yield f"{number['name']} ({gap:.1e})"


def _gaps(name: str, value: Any) -> list[float]:
    """How far from a tie the decisions of an entry are."""
    if name == "exp1/filter":
        return list(value["margin"])
    if name.endswith("/per_prompt"):
        return [value["smallest_absolute_margin"], *value["unpatched_counterfactual_margin"]]
    if "/pruning_by_" in name:
        return [trial["drop"] - circuits.THRESHOLD for trial in value["trials"]]
    if "smallest_relative_gap_of_the_largest_M" in value:
        return [value["smallest_relative_gap_of_the_largest_M"]]
    return list(value["per_prompt"]["margin"]) if "/full_model/" in name or "/circuit/" in name else []


def make(folder: Path) -> Path:
    """Write the pack into a folder."""
    tokenizer = sentence_pieces()
    network = model(len(tokenizer))
    network.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    prompts: Records = records(Encoder(tokenizer, "raw"))
    naive = Naive(Plain(network), prompts)
    numbers = list(entries(naive))
    ties = list(find_near_ties(numbers))
    if ties:
        raise ValueError(f"a rounding would decide in {', '.join(ties)}; take another SEED")
    content = {"about": __doc__, "swap_pair": list(SWAP_PAIR), "asked_entity": 0, "entries": numbers}
    (folder / "expected.json").write_text(json.dumps(content))
    prompts_of_designs = list(chain.from_iterable(design.values() for design in prompts.values()))
    (folder / "prompts.json").write_text(json.dumps({"prompts": prompts_of_designs}))
    save_file({"mean_z": _evaluation(naive).mean_z.contiguous()}, folder / "mean_z.safetensors")
    return folder


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
