"""Beyond the paper: would the conclusions survive a better experiment?"""

from __future__ import annotations

from typing import Any

from rebinding.paper.claim import Claim

OURS: dict[str, Any] = {"source": "beyond the paper", "asserted": ()}
BINDING: dict[str, Any] = OURS | {
    "metrics": ("dR",),
    "where": "group B, keys of its KV groups, at the readout; raw projections; slot 1 to 0, unless said otherwise",
    "groups": ("B",),
}
THIRD = Claim(
    "robust.third_slot",
    "Query and keys also redirect to the third slot, which the swap had nothing to do with.",
    kind="effect",
    statistic="mean change from slot 1 toward slot 2",
    **BINDING,
)
RANDOM = Claim(
    "robust.random_directions",
    "Query and key shifts do more than nine in ten random directions of their length.",
    kind="ordering",
    statistic="share of random directions whose mean change is smaller, whatever its sign",
    unit="direction draws",
    n=30,
    **BINDING,
)
LEAK = Claim(
    "robust.no_kv_leak",
    "Exchanged keys move the answer as much through the chosen heads alone as through their whole KV groups.",
    kind="no-effect",
    statistic="paired difference, keys of whole groups exchanged less keys as the chosen heads see them",
    **(BINDING | {"metrics": ("dlogit",)}),
)
ABLATED: dict[str, Any] = OURS | {
    "kind": "ordering",
    "metrics": ("accuracy",),
    "statistic": "difference of hits to random circuits, draws crossed with prompts",
    "unit": "nested",
}
BALANCED_MEAN = Claim(
    "robust.counterbalanced_mean",
    "The circuit still beats random ones when the means cannot know a slot.",
    where="readout; other heads held at their mean over counterbalanced prompts",
    **ABLATED,
)
FRESH = Claim(
    "robust.fresh_prompts",
    "The circuit still beats random ones on words that were never used to find it.",
    where="readout; the published test half, and the evaluation third of the counterbalanced design; other heads held"
    " at their mean over prompts of the same design",
    **(
        ABLATED
        | {
            "statistic": "difference of hits to random circuits, mean over the prompts of an answer; draws crossed with"
            " answers"
        }
    ),
)
MORE = Claim(
    "robust.more_operations",
    "The circuit found on one swap still beats random ones on a chain of two swaps, and on a move.",
    where="readout; other heads held at their mean over prompts of the same kind",
    **ABLATED,
)
