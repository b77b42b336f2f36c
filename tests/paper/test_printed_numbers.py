"""What the paper prints: tables, circuits and checkpoints, typed again from the page."""

from __future__ import annotations

import pytest

from rebinding.paper import numbers as published

G9, G12, L3, L8 = published.ALIASES

ACCURACY = {
    G9: "1 0.89 0.34 38 672",
    G12: "1 0.91 0.38 83 768",
    L3: "0.71 0.71 0.34 42 672",
    L8: "0.99 0.84 0.38 40 1024",
}
OTHER_METRICS = {
    G9: "8.87 2.76 -0.57 20.33 12.35 7.67",
    G12: "17.83 14.10 -0.78 31.73 21.69 6.22",
    L3: "0.84 2.32 -0.80 20.24 16.36 11.49",
    L8: "4.72 3.70 -0.52 20.77 14.72 9.59",
}
CONDITIONS = ("random", "q", "k_both", "k_box", "k_object", "qk")
BINDING = {
    G9: "-0.28 0.48 0.06  2.66 4.25 0.47  2.08 3.51 0.31  1.92 0.04 0.42  2.25 4.35 0.35  -0.12 1.57 0.12",
    G12: "-0.12 -0.69 0.08  0.26 0.41 0.04  0.29 0.10 0.14  -0.33 -0.05 0.12  0.87 0.23 0.18  -0.04 -0.49 0.08",
    L3: "-0.10 0.21 0.05  -0.46 0.15 0.01  1.32 1.03 0.30  2.23 0.06 0.37  0.29 0.69 0.15  1.69 0.95 0.34",
    L8: "0.17 1.02 0.12  0.18 0.83 0.06  1.20 2.92 0.36  1.59 -0.02 0.40  0.78 2.70 0.26  0.98 1.05 0.27",
}
CORRECT_ONLY = {"all_examples": "-0.46 0.15 1.32 1.03 1.69 0.95", "correct_only": "-0.48 0.11 1.36 1.05 1.73 1.05"}
SENTENCES = {
    f"heads.share@{G9}": 0.057,
    "heads.share.lowest": 0.03,
    "heads.share.highest": 0.10,
    f"roles.B.pointer@{G9}": 6.79,
    f"roles.B.content@{G9}": 0.26,
    f"roles.A.pointer@{G9}": 2.17,
    f"roles.A.content@{G9}": -0.29,
    "paths.top_k.A": 50,
    "paths.top_k.B": 50,
    "paths.top_k.C": 25,
    "paths.top_k.D": 10,
    "paths.top_k.E": 10,
    "n.tracing": 300,
    "n.paths": 100,
    "n.evaluation": 300,
    "n.random_circuits": 10,
    "n.roles": 300,
    "n.directions": 100,
    "n.binding": 300,
    "pruning.threshold": 0.01,
    f"paths.hours@{G12}": 16,
}


def typed_tables():
    """(id, table, printed) of every cell, from the strings above."""
    accuracy = ("accuracy.full", "accuracy.circuit", "accuracy.random", "heads.kept", "heads.total")
    other_metrics = [
        f"{metric}.{variant}" for metric in ("margin", "logit") for variant in ("full", "circuit", "random")
    ]
    cells = [f"binding.{row}.{metric}" for row in CONDITIONS for metric in ("dR", "dlogit", "switch")]
    subset = [f"{edit}.{metric}" for edit in ("q", "k_both", "qk") for metric in ("dR", "dlogit")]
    for model in published.ALIASES:
        binding = "tab:qk-binding-intervention" + ("" if model == G9 else "-other-models")
        for label, names, row in (
            ("tab:entity_tracking_acc", accuracy, ACCURACY[model]),
            ("tab:circuit_eval_other_metrics", other_metrics, OTHER_METRICS[model]),
            (binding, cells, BINDING[model]),
        ):
            yield from ((f"{name}@{model}", label, cell) for name, cell in zip(names, row.split(), strict=True))
    for row, printed in CORRECT_ONLY.items():
        for name, cell in zip(subset, printed.split(), strict=True):
            yield f"{row}.{name}@{L3}", "tab:correct_only_llama3b_int", cell


@pytest.mark.parametrize(("id", "label", "printed"), list(typed_tables()))
def test_every_cell_of_every_table(id, label, printed):
    number = published.number(id)
    assert (number.printed, number.source) == (printed, label)
    assert number.value == float(printed)


@pytest.mark.parametrize(("id", "expected"), SENTENCES.items())
def test_numbers_in_sentences(id, expected):
    assert published.number(id).value == pytest.approx(expected, abs=1e-12)


def test_only_listed_numbers_are_on_record():
    assert set(published.numbers()) == {id for id, _, _ in typed_tables()} | set(SENTENCES)


@pytest.mark.parametrize(
    ("id", "half_width"),
    [
        (f"accuracy.circuit@{G9}", 0.005),
        (f"accuracy.full@{G12}", 0.005),  # printed "1" in a column of two decimals
        (f"margin.circuit@{G12}", 0.005),  # 14.10 keeps its zero
        (f"heads.share@{G9}", 0.0005),  # 5.7 per cent
        ("heads.share.highest", 0.005),
        (f"heads.kept@{G9}", 0.0),
        ("n.tracing", 0.0),
        (f"paths.hours@{G12}", 0.5),
    ],
)
def test_rounding_follows_from_the_printed_places(id, half_width):
    assert published.number(id).half_width == pytest.approx(half_width, abs=1e-15)


def test_sample_sizes_are_those_stated():
    assert published.number(f"binding.q.dR@{L8}").n == 300
    assert published.number(f"all_examples.q.dR@{L3}").n == 300
    assert published.number(f"correct_only.q.dR@{L3}").n is None
    assert (published.number(f"accuracy.random@{L8}").n, published.number(f"accuracy.random@{L8}").draws) == (300, 10)
    assert published.number(f"heads.kept@{L8}").n is None


def test_margins_are_declared_with_a_reason_for_every_kind_in_use():
    for number in published.numbers().values():
        assert len(published.tolerance(number.kind).reason) > 20
        judged = number.kind not in ("count", "setting", "duration")
        assert (number.margin is not None) == judged
    assert published.number(f"binding.q.dR@{G9}").margin == pytest.approx(0.15 * 2.66)
    assert published.number(f"binding.q.dR@{L8}").margin == 0.20


def test_accuracy_margin_can_be_met_by_the_sample_sizes_in_use():
    """Two samples of 300 at 0.71: 1.645 sqrt(2 x 0.71 x 0.29 / 300) = 0.061, plus the rounding, is below the margin."""
    reach = 1.645 * (2 * 0.71 * 0.29 / 300) ** 0.5 + 0.005
    assert reach < published.tolerance("accuracy").absolute < 2 * reach


def test_the_share_kept_is_the_printed_percentage_and_the_count_of_listed_pairs():
    for alias in published.ALIASES:
        share = published.share_kept(alias)
        assert share.value == pytest.approx(
            len(published.circuit(alias)) / published.number(f"heads.total@{alias}").value
        )
    assert abs(published.share_kept(G9).value - published.number(f"heads.share@{G9}").value) <= 0.0005


def test_withdrawn_figures_are_apart_and_refused():
    withdrawn = published.withdrawn()
    assert not set(withdrawn) & set(published.numbers())
    deltas = {
        G9: "0.38 4.24 3.28 0.49 3.98 1.37",
        G12: "-0.27 0.52 0.31 -0.03 0.67 -0.40",
        L3: "-0.02 0.06 0.42 0.04 0.34 0.37",
        L8: "0.45 0.68 2.15 0 1.87 0.79",
    }
    for model, row in deltas.items():
        assert [withdrawn[f"target_delta.{name}@{model}"].printed for name in CONDITIONS] == row.split()
    assert withdrawn["residual_binding.accuracy.swap_boxes"].value == 0.48
    assert withdrawn["residual_binding.accuracy.question_box"].value == 0.83
    with pytest.raises(KeyError, match="commented out"):
        published.number(f"target_delta.q@{G9}")


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(KeyError, match=r"did you mean 'binding\.q\.dR@gemma2-9b'"):
        published.number("binding.q.dr@gemma2-9b")
    with pytest.raises(KeyError, match="its aliases are gemma2-9b"):
        published.circuit("gpt2")
    with pytest.raises(ValueError, match="not a printed number"):
        published.printed_number("x", "about 3", kind="dR", source="here")


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
