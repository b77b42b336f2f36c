"""Section 4.1: a small circuit does the task, and its groups form a chain."""

from __future__ import annotations

from typing import Any

from rebinding.paper.claim import Claim, Metric

ROW: dict[str, Any] = {"source": "section 4.1, circuit evaluation", "where": "readout; other heads held at their mean"}
FULL_ACCURACY = Claim(
    "circuit.full_model_accuracy",
    "The full model answers this share of the prompts.",
    kind="value",
    metrics=("accuracy",),
    statistic="share of prompts whose answer beats the other objects",
    **ROW,
)
RECOVERS = Claim(
    "circuit.recovers_accuracy",
    "The circuit alone answers this share of the prompts.",
    kind="value",
    metrics=("accuracy",),
    statistic="the same, all other heads ablated",
    **ROW,
)
BASELINE = Claim(
    "circuit.random_baseline",
    "Random circuits of the same size answer this share of the prompts.",
    kind="value",
    metrics=("accuracy",),
    statistic="mean share per draw",
    unit="circuit draws",
    **ROW,
)
BEATS = Claim(
    "circuit.beats_random",
    "The circuit answers more prompts than random circuits of its size.",
    kind="ordering",
    metrics=("accuracy",),
    statistic="difference of hits, draws crossed with prompts",
    unit="nested",
    **ROW,
)
NO_FLOOR = Claim(
    "circuit.not_a_floor",
    "The circuit is better than random ones although the model is weak, and its margin exceeds the model's.",
    kind="ordering",
    metrics=("accuracy", "margin"),
    statistic="difference of hits to random circuits, difference of margins to the full model",
    asserted=("llama3.2-3b",),
    **ROW,
)
QUANTITIES: tuple[tuple[str, str, Metric], ...] = (
    ("margins", "The answer's margins over the other objects", "margin"),
    ("label_logits", "The answer's logits", "logit"),
)
MARGINS, LOGITS = (
    Claim(
        f"circuit.{name}",
        f"{said} of full model, circuit and random circuits are the printed ones.",
        kind="value",
        metrics=(metric,),
        statistic=f"mean {metric} over prompts; over draws for the random circuits",
        **ROW,
    )
    for name, said, metric in QUANTITIES
)
E_PRIME = Claim(
    "circuit.e_prime",
    "Without the heads of group E the circuit still answers: the means at the context carry the binding.",
    kind="effect",
    metrics=("accuracy",),
    statistic="share of prompts answered without group E, above chance",
    asserted=("gemma2-9b", "llama3.2-3b"),
    n=50,
    **ROW,
)
FOUND: dict[str, Any] = {
    "source": "section 4.1, circuit evaluation",
    "where": "the circuit that we discovered",
    "n": 50,
}
COMPACT = Claim(
    "circuit.compact",
    "Pruning leaves this share of the heads.",
    kind="value",
    metrics=("share",),
    statistic="share of head-position pairs left, over several orders of the walk",
    unit="circuit draws",
    **FOUND,
)
E_EMPTY, E_PRESENT = (
    Claim(
        f"circuit.group_e_{name}",
        f"Pruning leaves {said} of group E.",
        kind="set",
        metrics=("share",),
        statistic="the heads left, over several orders of the walk",
        unit="circuit draws",
        asserted=asserted,
        **FOUND,
    )
    for name, said, asserted in (
        ("empty", "nothing", ("gemma2-9b", "llama3.2-3b")),
        ("present", "heads", ("gemma3-12b", "llama3.1-8b")),
    )
)
MINIMAL = Claim(
    "circuit.minimal",
    "No head that pruning keeps can go without a loss.",
    kind="effect",
    metrics=("probability",),
    statistic="fall of the answer's logit without the head, on prompts that pruning did not see; every head",
    **(FOUND | {"where": "the discovered circuit after pruning, all other heads held at their mean"}),
)
AGAIN = {
    group: Claim(
        f"circuit.heads_found_again.{group}",
        f"Path patching finds heads of the published group {group} again, beyond chance.",
        "the table of heads of the four models",
        "set",
        ("share",),
        "overlap of the selected heads with the published group, beside our own selection on resampled prompts",
        "all layers and heads; partner named second, independent noise, everything else frozen",
        n=100,
    )
    for group in "ABCDE"
}
PATHS: dict[str, Any] = {
    "source": "section 4.1, rebinding circuit",
    "metrics": ("probability",),
    "statistic": "mean relative fall of the answer's probability over the group's heads",
    "n": 100,
}
LINKS = {
    stage: Claim(
        f"circuit.chain.{name}",
        said,
        kind="effect",
        where=f"{where}; path patching, other heads frozen, independent noise, keys and values per query head",
        groups=groups,
        **PATHS,
    )
    for stage, name, said, where, groups in (
        ("A", "A_logits", "Group A writes the answer.", "A at the readout to the logits", ("A",)),
        ("B", "B_q_A", "Group B tells A's queries where to look.", "B to the q of A, at the readout", ("B", "A")),
        ("C", "C_v_B", "Group C hands B its values.", "C to the v of B, at the question's box", ("B", "C")),
        ("D", "D_C", "Group D is read by C at the swap.", "D to k and v of C, at the partner in the swap", ("C", "D")),
        ("E", "E_v_D", "Group E hands D its values.", "E to the v of D, at the partner in the context", ("D", "E")),
    )
}
NULL = Claim(
    "circuit.chain.D_q_C",
    "Frozen, group D cannot reach C's query at the question's box.",
    kind="no-effect",
    where="D to the q of C, at the question's box; path patching, other heads frozen, independent noise",
    groups=("C", "D"),
    **PATHS,
)
