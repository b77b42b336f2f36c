"""Section 5: are binding IDs matched in the queries and keys of group B?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rebinding.paper.claim import Claim, Metric

CONDITIONS = {
    "random": "a random direction added",
    "q": "the query asking for slot j",
    "k_both": "the keys of the two slots exchanged",
    "k_box": "the keys of the two boxes exchanged",
    "k_object": "the keys of the two objects exchanged",
    "qk": "the query shifted and the keys exchanged",
}
MEASURES: Mapping[Metric, str] = {
    "dR": "the log ratio of the attention on slot j to that on slot i changes by the printed amount",
    "dlogit": "the logit of slot j's object against slot i's changes by the printed amount",
    "switch": "the printed share turns from slot i to slot j",
}
STATISTICS: Mapping[Metric, str] = {
    "dR": "mean dR over heads and prompts",
    "dlogit": "mean dlogit over prompts",
    "switch": "share of heads and prompts, or of prompts: which of them was printed is not known",
}
ROW: dict[str, Any] = {
    "source": "section 5, results",
    "where": "group B, keys of its KV groups, at the readout; raw projections; read on the shifted tokens; slot 1 to 0",
    "groups": ("B",),
}
CONTROLLED: dict[str, Any] = {
    "where": "each head of group B, at the readout; raw projections; read on box and object; all ordered slot pairs",
    "unit": "nested",
    "n": 180,
}


def both(claim: Claim, **changes: Any) -> tuple[Claim, Claim]:
    """The sentence as published, and controlled: every ordered pair of slots once a unit, crossed with ten sets of
    directions that were measured on other prompts with other words."""
    return claim, claim.controlled(**CONTROLLED | changes)


TABLE = {
    f"{condition}.{measure}": Claim(
        f"binding.table.{condition}.{measure}",
        f"With {said}, {what}.",
        kind="value",
        metrics=(measure,),
        statistic=STATISTICS[measure],
        **(ROW | {"source": "the table of the Q/K interventions"}),
    )
    for condition, said in CONDITIONS.items()
    for measure, what in MEASURES.items()
}
Q_REDIRECTS = Claim(
    "binding.q_redirects",
    "Shifting the query toward another slot turns attention and answer to that slot.",
    kind="effect",
    metrics=("dR", "dlogit"),
    statistic="mean change",
    asserted=("gemma2-9b", "gemma3-12b"),
    **ROW,
)
K_REDIRECTS = Claim(
    "binding.k_redirects",
    "Exchanging the keys of two slots turns attention to the other slot.",
    kind="effect",
    metrics=("dR",),
    statistic="mean change",
    **ROW,
)
BOX_KEYS = Claim(
    "binding.box_keys_address_only",
    "Exchanging the keys of the boxes alone turns attention and leaves the answer.",
    kind="effect",
    metrics=("dR", "dlogit"),
    statistic="mean change",
    asserted=("gemma2-9b",),
    **ROW,
)
OBJECT_KEYS = Claim(
    "binding.object_keys_read_out",
    "Exchanging the keys of the objects moves the answer more than those of the boxes, and no shift moves it more.",
    kind="ordering",
    metrics=("dlogit",),
    statistic="paired difference to every other condition",
    asserted=("gemma2-9b",),
    **ROW,
)
CANCELS = Claim(
    "binding.qk_cancels",
    "Shifting query and keys together undoes what either does: it moves attention less than each alone, and attention,"
    " heads and answer no more than a random shift.",
    kind="ordering",
    metrics=("dR", "dlogit", "switch"),
    statistic="paired differences of dR to the query's and the keys', and of all sizes to the random control's;"
    " controlled, dR of the query's and the keys' themselves, too",
    asserted=("gemma2-9b", "gemma3-12b"),
    **ROW,
)
DOMINANCE = Claim(
    "binding.key_dominance",
    "Keys turn attention more than the query, which does less than half of what they do, and both together still do.",
    kind="ordering",
    metrics=("dR",),
    statistic="paired differences, and mean",
    asserted=("llama3.2-3b", "llama3.1-8b"),
    **ROW,
)
Q_STRONGEST = Claim(
    "binding.q_strongest",
    "The query shift moves attention and answer more than any shift of keys.",
    kind="ordering",
    metrics=("dR", "dlogit"),
    statistic="paired difference to every shift of keys",
    asserted=("gemma3-12b",),
    **ROW,
)
BOTH_MOST = Claim(
    "binding.both_keys_most",
    "Exchanging the keys of boxes and objects turns attention more than exchanging those of the objects.",
    kind="ordering",
    metrics=("dR",),
    statistic="paired difference",
    asserted=("gemma2-9b",),
    **ROW,
)
CORRECT_ONLY = Claim(
    "binding.llama3b_correct_only",
    "On the prompts that the model answers correctly the shifts do what they do on all, and query and keys together"
    " still turn attention.",
    kind="value",
    metrics=("dR", "dlogit"),
    statistic="printed values and mean dR over correct examples, and their mean less that over all",
    asserted=("llama3.2-3b",),
    **(ROW | {"source": "the table of correct examples only"}),
)
SIGNATURE = Claim(
    "binding.signature",
    "Which signature the model shows: matching, key dominated, or neither.",
    kind="report",
    metrics=("dR",),
    statistic="which of the three sets of rules holds",
    asserted=(),
    **ROW,
)
MASS = Claim(
    "beyond.mass",
    "Group B gives more than a quarter of its attention to boxes and objects of the context, of which dR speaks.",
    "beyond the paper",
    "effect",
    ("probability",),
    "attention on boxes and objects of the context, mean over heads and prompts; beside it, on the question's box",
    "group B, at the readout",
    groups=("B",),
    asserted=(),
)
FAMILIES = both(
    Claim(
        "binding.families_differ",
        "Over the models of a run: in Gemma models query and keys match, and Llama models are dominated by keys.",
        kind="ordering",
        metrics=("dR",),
        statistic="what binding.qk_cancels came to on every Gemma, and binding.key_dominance on every Llama",
        **(ROW | {"source": "section 6, binding ID matching"}),
    )
)
