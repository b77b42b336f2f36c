"""Path patching against the reference numbers: every stage, component and scope, frozen or not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PathSettings, Stage
from tests.reference.pack import ROLES, Agrees, Pack

NAME, PARTS = "exp2 path patching", 4
"""A relative change of a probability is made of four numbers, each of which may be off: two logits, two log totals."""

COMPONENTS = {"": None, "q": "q", "k": "k", "v": "v", "k+v": "kv"}


def cases(pack: Pack) -> list[str]:
    """The entries that hold a stage's scores."""
    return [name for name, entry in pack.starting("path_patching").items() if "stage" in entry["settings"]]


def make_stage(settings: dict) -> Stage:
    """A stage as the pack describes it."""
    component = COMPONENTS["+".join(sorted(settings["receiver_components"]))]
    receivers = None if component is None else "listed"
    at = None if component is None else ROLES[settings["receiver_role"]]
    return Stage(settings["stage"], ROLES[settings["sender_role"]], receivers, component, at, top_k=1)


def make_pairs(pack: Pack) -> NoisePairs:
    """The pack's clean and corrupt prompts."""
    entry = pack.entries["path_patching/p_orig"]
    clean, corrupt = (pack.prompts(f"path_patching/{side}", entry["ids"]) for side in ("clean", "corrupt"))
    labels = torch.tensor(entry["settings"]["label_token_ids"])
    return NoisePairs(tuple(entry["ids"]), tuple(clean), tuple(corrupt), labels, labels[:, None][:, :0])


def test_stages_equal_the_pack(pack: Pack, agrees: Agrees, subtests: pytest.Subtests) -> None:
    """The relative change of every prompt and head, and its mean, the score."""
    scene = make_pairs(pack)
    names = cases(pack)
    assert names, "the pack holds no path patching"
    for name in names:
        entry = pack.entries[name]
        settings = entry["settings"]
        scope = "group" if settings.get("key_value_scope", "").startswith("kv_group") else "head"
        frozen = "all" if name.startswith("path_patching_frozen") else "none"
        receivers = [] if isinstance(settings["receivers"], str) else [tuple(head) for head in settings["receivers"]]
        evidence = score_stage(
            pack.surgeon, scene, make_stage(settings), receivers, settings=PathSettings(frozen, scope, block=4)
        )
        shape = (len(scene.ids), pack.anatomy.n_layers, pack.anatomy.n_heads)
        order = [scene.ids.index(number) for number in evidence.rows["prompt"]]
        table = evidence.rows.assign(place=order).sort_values(["place", "layer", "head"])
        relative = (table["p_patch"] / table["p_orig"]).to_numpy().reshape(shape) - 1
        unpatched = np.array(pack.entries["path_patching/p_orig"]["value"]["p_orig"])[:, None, None]
        with subtests.test(name):
            agrees(NAME, relative, np.array(entry["value"]["p_patch"]) / unpatched - 1, parts=PARTS)
            agrees(NAME, relative.mean(axis=0), entry["value"]["score"], parts=PARTS)


def test_clean_probabilities_equal_the_pack(pack: Pack, agrees: Agrees) -> None:
    """The probability of the answer in the clean runs."""
    scene = make_pairs(pack)
    evidence = score_stage(pack.surgeon, scene, Stage("A", "readout", None, None, None, 1))
    first = evidence.rows[(evidence.rows["layer"] == 0) & (evidence.rows["head"] == 0)].set_index("prompt")
    expected = pack.entries["path_patching/p_orig"]["value"]["p_orig"]
    agrees(NAME, first.loc[list(scene.ids), "p_orig"].to_numpy(), expected)


def test_query_across_tokens_is_null_when_frozen(pack: Pack) -> None:
    """A head's output at one token cannot reach a query at another while every other head is frozen: exactly."""
    scene = make_pairs(pack)
    for name in cases(pack):
        settings = pack.entries[name]["settings"]
        stage = make_stage(settings)
        if name.startswith("path_patching_frozen") and stage.component == "q" and stage.at != stage.sender:
            receivers = [tuple(head) for head in settings["receivers"]]
            rows = score_stage(pack.surgeon, scene, stage, receivers, settings=PathSettings("all", "head")).rows
            assert (rows["p_patch"] == rows["p_orig"]).all(), name
