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
    statistic="mean share over draws and prompts, both drawn: random circuits may guess alike",
    unit="nested",
    **ROW,
)
NEAR_FULL = Claim(
    "circuit.near_full",
    "The circuit alone answers at least nine tenths of the prompts that the full model answers.",
    kind="effect",
    metrics=("accuracy",),
    statistic="hits of the circuit less 0.9 times those of the full model, by prompt, above 0",
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
BEATS_BY_LAYER = BEATS.controlled(
    says="The circuit answers more prompts than random circuits with as many heads at each token in each layer.",
    where="readout; counterbalanced prompts; other heads held at their mean over such prompts; random circuits matched"
    " by layer",
)
NO_FLOOR = Claim(
    "circuit.not_a_floor",
    "The circuit is better than random ones although the model is weak.",
    kind="ordering",
    metrics=("accuracy",),
    statistic="difference of hits to random circuits; and the model's own accuracy, below nine tenths",
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
    "Without the heads of group E the circuit still answers, because the residual stream at the context still says"
    " where the boxes are bound.",
    source="section 4.1, circuit evaluation",
    where="readout; other heads held at their mean; the stream at the partner's label in the context, in front of the"
    " layers of group D, replaced by that of the same word in a prompt whose statements have moved on by one slot",
    kind="effect",
    metrics=("accuracy", "margin"),
    statistic="share of prompts answered without group E, above chance; and by how much the answer's margin over the"
    " other objects falls with the other stream, by prompt, above the margin",
    asserted=("gemma2-9b", "llama3.2-3b"),
    n=50,
    groups=("D",),
)
FOUND: dict[str, Any] = {
    "source": "section 4.1, circuit evaluation",
    "where": "the circuit that we discovered",
    "n": 50,
}
SIX_WAYS: dict[str, Any] = FOUND | {"long": True}
COMPACT = Claim(
    "circuit.compact",
    "Pruning leaves this share of the heads.",
    kind="value",
    metrics=("share",),
    statistic="share of head-position pairs left, over several orders of the walk",
    unit="circuit draws",
    **SIX_WAYS,
)
THREE_TO_TEN = Claim(
    "circuit.three_to_ten_percent",
    "Pruning leaves three to ten per cent of the heads.",
    kind="no-effect",
    metrics=("share",),
    statistic="share of head-position pairs left, over several orders of the walk, within 0.03 to 0.10",
    unit="circuit draws",
    **SIX_WAYS,
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
        **SIX_WAYS,
    )
    for name, said, asserted in (
        ("empty", "nothing", ("gemma2-9b", "llama3.2-3b")),
        ("present", "heads", ("gemma3-12b", "llama3.1-8b")),
    )
)
AS_STATED = Claim(
    "circuit.pruned_as_stated",
    "No head of the published circuit contributes less than one per cent of the answers: those were pruned.",
    kind="effect",
    metrics=("accuracy",),
    statistic="hits of the circuit less 1.01 times those without the head, by prompt, above 0 beside one set of other"
    " heads that is gone, at least: none, a whole group, or one of eight drawn sets, where half of the hits remain",
    groups=("A",),
    **ROW,
)
MINIMAL = Claim(
    "circuit.minimal",
    "At least nine in ten of the heads that pruning keeps cannot go without a loss.",
    kind="effect",
    metrics=("margin",),
    statistic="share of the heads without which the answer's margin surely falls by half a step of pruning, on prompts"
    " that pruning did not see",
    asserted=(),
    procedure="controlled",
    **(FOUND | {"where": "the discovered circuit after pruning, all other heads held at their mean"}),
)
AGAIN = {
    group: Claim(
        f"circuit.heads_found_again.{group}",
        f"Path patching finds heads of the published group {group} again, beyond chance.",
        "the table of heads of the four models",
        "set",
        ("share",),
        "overlap of the heads that a stage keeps with the published group; chance is a blind draw from all heads",
        "all layers and heads; published naming order, whole KV groups; either of the released noises, other heads"
        " frozen or not, D heard by keys and values or by the query",
        n=100,
        long=True,
    )
    for group in "ABCDE"
}
AGAIN_CONTROLLED = {
    group: one.controlled(
        statistic="overlap with the published group; chance is a blind draw with as many heads in each layer; beside it"
        " our own selection on resampled prompts, receivers held",
        where="all layers and heads; counterbalanced prompts, independent noise, everything else frozen; scored by the"
        " answer's lead in logits",
    )
    for group, one in AGAIN.items()
}
PATHS: dict[str, Any] = {
    "source": "section 4.1, rebinding circuit",
    "kind": "effect",
    "metrics": ("probability",),
    "statistic": "mean relative fall of the answer's probability over the group's heads",
    "n": 100,
}
HOW = "path patching, other heads frozen, independent noise, keys and values per query head, prompts that discovery"
LINKS = {
    stage: Claim(f"circuit.chain.{name}", said, where=f"{where}; {HOW} did not see", groups=groups, **(PATHS | changed))
    for stage, name, said, where, groups, changed in (
        ("A", "A_logits", "Group A writes the answer.", "A at the readout to the logits", ("A",), {}),
        ("B", "B_q_A", "Group B tells A's queries where to look.", "B to the q of A, at the readout", ("B", "A"), {}),
        ("C", "C_v_B", "Group C hands B its values.", "C to the v of B, at the question's box", ("B", "C"), {}),
        (
            "D",
            "D_kv_C",
            "Group D is read by C's keys and values at the swap.",
            "D to k and v of C, at the partner in the swap",
            ("C", "D"),
            {"source": "ours, the alternative to the paper's D by Q to C", "asserted": ()},
        ),
        ("E", "E_v_D", "Group E hands D its values.", "E to the v of D, at the partner in the context", ("D",), {}),
    )
}
LINKS_IN_LOGITS = {
    stage: one.controlled(
        metrics=("dlogit",),
        statistic="fall of the answer's lead over the other objects, in logits, summed over the group's heads",
    )
    for stage, one in LINKS.items()
}
D_BY_Q = Claim(
    "circuit.chain.D_q_C",
    "Group D acts on C's queries.",
    where="D to the q of C, at the question's box; nothing frozen (frozen, nothing carries a value from one token to"
    " another, and the effect is exactly 0)",
    groups=("C", "D"),
    **PATHS,
)
