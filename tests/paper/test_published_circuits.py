"""The published circuits and checkpoints, against the head table as printed: (head, layer)."""

import pytest

from rebinding.paper import numbers as published

G9, G12, L3, L8 = published.ALIASES

HEADS_BY_GROUP = {
    G9: {
        "A": "15,27 7,25 0,26 1,25 8,39 1,39 11,40 7,21 13,27 12,38 10,25",
        "B": "12,28 4,28 1,30 5,22 14,24 3,21 8,28 10,28 6,29 12,21 12,26 7,32 15,30 4,26 4,22 15,11 2,28",
        "C": "3,18 7,21 3,19 14,19 10,16 1,18 2,0 11,22 13,8",
        "D": "0,17",
        "E": "",
    },
    G12: {
        "A": "2,47 1,46 14,47 4,47 10,32 7,47 4,31 13,32 2,30 0,15 15,30 4,10 8,16 12,29 5,29 11,14 3,37 1,4 13,43",
        "B": "6,28 0,46 11,32 2,44 11,41 14,1 13,6 3,18 14,30 8,46 10,6 4,26 1,9 4,39 12,26 10,15 9,6 3,0 "
        "7,45 9,46 7,26 3,41 12,44 2,46 1,35 10,28 3,30 10,3 11,46",
        "C": "6,5 8,40 2,30 0,5 14,24 4,18 6,41 9,33 2,27 15,32 14,9 14,15 13,34 8,36 9,11 10,6 14,12 11,27",
        "D": "14,7 3,10 7,19 9,9 2,35 1,19 6,13 10,5 6,28",
        "E": "8,20 13,9 7,13 10,10 11,19 6,22 6,25 4,23",
    },
    L3: {
        "A": "5,24 9,18 0,27 2,15 17,21 6,16 22,15 1,27 20,21 0,17 17,16 9,23 11,22",
        "B": "15,13 2,12 1,12 5,11 23,13 17,13 18,15 3,12 11,12 16,14 14,12 19,14 10,18 6,9 3,7 7,19 16,10 7,7 "
        "2,14 1,7",
        "C": "11,10 9,11 23,9 1,11 20,9",
        "D": "22,8 19,2 7,10 2,7",
        "E": "",
    },
    L8: {
        "A": "7,27 29,22 28,16 20,18 26,17 26,16 4,17 13,24",
        "B": "6,14 13,13 10,21 11,15 1,16 13,20 8,15 5,14 24,17 15,13 21,13 28,18 3,26 16,16 5,17 3,16 19,22 25,12 "
        "9,15 11,22 25,16 26,11 13,26 2,13 26,24",
        "C": "2,10 25,12 3,10 21,13",
        "D": "13,8 0,10",
        "E": "21,5",
    },
}


@pytest.mark.parametrize("alias", published.ALIASES)
@pytest.mark.parametrize("group", published.GROUPS)
def test_groups_are_the_printed_ones_with_the_layer_first(alias, group):
    printed = [tuple(map(int, pair.split(","))) for pair in HEADS_BY_GROUP[alias][group].split()]
    heads = [(head, layer) for in_group, layer, head, _ in published.circuit(alias) if in_group == group]
    assert heads == printed


@pytest.mark.parametrize(("alias", "pairs", "distinct"), [(G9, 38, 37), (G12, 83, 80), (L3, 42, 42), (L8, 40, 38)])
def test_counts_are_of_head_position_pairs(alias, pairs, distinct):
    circuit = published.circuit(alias)
    assert len(circuit) == pairs == published.number(f"heads.kept@{alias}").value
    assert len({(layer, head) for _, layer, head, _ in circuit}) == distinct


@pytest.mark.parametrize("alias", published.ALIASES)
def test_every_head_exists_in_its_model(alias):
    model = published.checkpoint(alias)
    circuit = published.circuit(alias)
    assert all(layer < model.layers and head < model.heads for _, layer, head, _ in circuit)
    assert model.layers * model.heads == published.number(f"heads.total@{alias}").value


def test_groups_act_at_their_own_tokens():
    roles = {group: role for alias in published.ALIASES for group, _, _, role in published.circuit(alias)}
    assert roles == {
        "A": "readout",
        "B": "readout",
        "C": "question_box",
        "D": "swap_partner",
        "E": "context_partner",
    }


@pytest.mark.parametrize(
    ("alias", "hub", "layers", "heads", "kv_heads", "head_dim", "chat"),
    [
        (G9, "google/gemma-2-9b-it", 42, 16, 8, 256, "gemma"),
        (G12, "google/gemma-3-12b-it", 48, 16, 8, 256, "gemma"),
        (L3, "meta-llama/Llama-3.2-3B-Instruct", 28, 24, 8, 128, "llama3"),
        (L8, "meta-llama/Llama-3.1-8B-Instruct", 32, 32, 8, 128, "llama3"),
    ],
)
def test_checkpoints(alias, hub, layers, heads, kv_heads, head_dim, chat):
    model = published.checkpoint(alias)
    assert (model.alias, model.hub, model.chat) == (alias, hub, chat)
    assert (model.layers, model.heads, model.kv_heads, model.head_dim) == (layers, heads, kv_heads, head_dim)
