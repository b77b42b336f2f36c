"""Mean ablation, selection, pruning and measures against the reference numbers."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
import torch

from rebinding.experiments.ablation import evaluate, mean_z
from rebinding.experiments.circuit.measure import walk
from rebinding.experiments.paths.summary import select
from rebinding.experiments.tokens import Answers, full_model
from rebinding.paper.circuit import Circuit, CircuitHead
from tests.close import agree
from tests.reference.pack import ABSOLUTE, ROLES, Agrees, Pack

COLUMNS = {
    "candidate_accuracy": "hit",
    "mean_label_logit": "label_logit",
    "mean_candidate_margin": "margin",
    "mean_label_prob": "probability",
}
NAME = "exp2 circuits"


def make_answers(pack: Pack, design: str, ids: list[int], form: str) -> Answers:
    """Each prompt's candidates: the objects in the boxes after the swap, spaced or in both forms."""
    records = pack.raw(design)
    tokens, right = [], []
    for number in ids:
        record = records[number]
        words = list(record["state_after_swap"].values())
        forms = ["object_token_with_space"] + (["object_token_without_space"] if form == "aliases" else [])
        tokens.append([[record[form_name][word] for form_name in forms] for word in words])
        right.append(words.index(record["answer"]))
    return Answers(torch.tensor(tokens), torch.tensor(right))


def build_circuit(members: list[Any]) -> Circuit:
    """A circuit as the pack lists it: with or without the group's name first."""
    rows = [member if len(member) == 4 else ["random", *member] for member in members]
    return Circuit(tuple(CircuitHead(group, layer, head, ROLES[role]) for group, role, layer, head in rows))


def components(pack: Pack) -> Circuit:
    """The unpruned circuit of the pack."""
    members = pack.entries["circuit/components"]["value"]
    return build_circuit([[member["group"], member["role"], member["layer"], member["head"]] for member in members])


@pytest.fixture(scope="module")
def means(pack: Pack) -> list[torch.Tensor]:
    """Our means over the pack's prompts."""
    entry = pack.entries["circuit/mean_activation"]
    return mean_z(pack.surgeon, pack.prompts(entry["settings"]["design"], entry["ids"]), block=7)


def test_means_equal_the_pack(pack: Pack, means: list[torch.Tensor]) -> None:
    """The full mean tensor; the pack's authors measured an agreement of 5e-5, on one kind of processor."""
    expected = pack.tensors["mean_z"].transpose(1, 2)  # (layer, head, token, head_dim)
    assert agree(torch.stack(means), expected)


def test_components_equal_the_pack(pack: Pack) -> None:
    """The selection from score matrices, heads of both A and B counted as B's."""
    entry = pack.entries["circuit/components"]
    groups = {}
    for group, matrix in entry["settings"]["score_matrices"].items():
        grid = pack.entries[matrix]["value"]["score"]
        table = pd.DataFrame(
            [(layer, head, score) for layer, row in enumerate(grid) for head, score in enumerate(row)],
            columns=["layer", "head", "score"],
        )
        groups[group] = select(table, entry["settings"]["k"][group], rule="published", min_effect=0.0)
    groups["A"] = [head for head in groups["A"] if head not in groups["B"]]
    assert {name: list(components(pack).group(name)) for name in groups} == groups


@pytest.mark.parametrize(("method", "form"), [("batched", "aliases"), ("batched", "spaced_only"), ("edits", "aliases")])
def test_measures_equal_the_pack(
    pack: Pack, means: list, form: str, method: Any, agrees: Agrees, subtests: pytest.Subtests
) -> None:
    """Full model, circuit, empty circuit, pruned and random circuits, on all their prompts."""
    for name, entry in pack.starting(f"circuit/{form}/").items():
        if "pruning" in name:
            continue
        kind, prompts_of = name.split("/")[2:]
        design = f"circuit/{prompts_of}"
        prompts = pack.prompts(design, entry["ids"])
        answers = make_answers(pack, design, entry["ids"], form)
        values = entry["value"] if isinstance(entry["value"], list) else [entry["value"]]
        if kind == "full_model":
            rows = full_model(pack.surgeon, prompts, answers, entry["ids"]).rows
        else:
            circuits = _circuits(pack, kind, entry)
            rows = evaluate(
                pack.surgeon, prompts, answers, entry["ids"], circuits, means, mean_set="pack", method=method, block=4
            ).rows
        with subtests.test(name):
            for (_, rows_of_circuit), expected in zip(rows.groupby("circuit", sort=False), values, strict=True):
                for measure, column in COLUMNS.items():
                    agrees(NAME, float(rows_of_circuit[column].mean()), expected[measure])
                if "per_prompt" in expected:
                    by_prompt = rows_of_circuit.set_index("prompt").loc[entry["ids"]]
                    agrees(NAME, by_prompt["label_logit"], expected["per_prompt"]["label_logit"])
                    agrees(NAME, by_prompt["margin"], expected["per_prompt"]["margin"])
                    assert by_prompt["margin"].abs().min() > ABSOLUTE, "a hit would be a matter of rounding"
                    assert list(by_prompt["hit"].astype(int)) == expected["per_prompt"]["hit"]


def _circuits(pack: Pack, kind: str, entry: dict[str, Any]) -> dict[str, Circuit]:
    if kind == "empty_circuit":
        return {"empty": Circuit(())}
    if kind == "circuit":
        return {"circuit": components(pack)}
    if kind == "random_circuits":
        return {
            f"random {number}": build_circuit(circuit["components"]) for number, circuit in enumerate(entry["value"])
        }
    return {"pruned": build_circuit(entry["settings"]["circuit"])}


def test_pruning_equals_the_pack(pack: Pack, means: list, agrees: Agrees, subtests: pytest.Subtests) -> None:
    """Order, drops and outcome of the published walk, for every measure and form of the answer in the pack."""
    walks = {name: entry for name, entry in pack.starting("circuit/").items() if "/pruning_by_" in name}
    assert walks
    for name, entry in walks.items():
        with subtests.test(name):
            _check_walk(pack, means, agrees, name.split("/")[1], entry)


def _check_walk(pack: Pack, means: list, agrees: Agrees, form: str, entry: dict[str, Any]) -> None:
    metric = entry["settings"]["metric"]
    settings, design = entry["settings"], entry["settings"]["design"]
    prompts = pack.prompts(design, entry["ids"])
    answers = make_answers(pack, design, entry["ids"], form)

    def score(circuits: Any) -> list[float]:
        by_name = {str(number): circuit for number, circuit in enumerate(circuits)}
        rows = evaluate(pack.surgeon, prompts, answers, entry["ids"], by_name, means, mean_set="pack").rows
        return [float(rows.loc[rows["circuit"] == name, COLUMNS[metric]].mean()) for name in by_name]

    options = {"threshold": settings["threshold"], "relative": metric == "candidate_accuracy"}
    (actual,) = walk([components(pack)], score, **options)
    assert set(actual.circuit.heads) == set(build_circuit(entry["value"]["kept"]).heads)
    assert len(actual.trials) == len(entry["value"]["trials"])
    for trial, expected in zip(actual.trials, entry["value"]["trials"], strict=True):
        assert trial.head == build_circuit([expected["component"]]).heads[0]
        assert trial.removed == expected["removed"]
        agrees(NAME, [trial.before, trial.without], [expected["score_before"], expected["score_without"]])
