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
    "switch": "the printed share of heads turns from slot i to slot j",
}
ROW: dict[str, Any] = {
    "source": "section 5, results",
    "where": "heads of group B, at the readout; raw projections; read on box and object tokens; from slot 1 to slot 0",
    "groups": ("B",),
}
TABLE = {
    f"{condition}.{measure}": Claim(
        f"binding.table.{condition}.{measure}",
        f"With {said}, {what}.",
        kind="value",
        metrics=(measure,),
        statistic=f"mean {measure} over heads and prompts",
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
    "Of all shifts, exchanging the keys of the objects alone moves the answer most.",
    kind="ordering",
    metrics=("dlogit",),
    statistic="paired difference to every other condition",
    asserted=("gemma2-9b",),
    **ROW,
)
CANCELS = Claim(
    "binding.qk_cancels",
    "Shifting query and keys together leaves attention where it was, and switches no more heads than a random shift.",
    kind="no-effect",
    metrics=("dR", "switch"),
    statistic="mean change of dR, and paired difference of switches to the random shift of both",
    asserted=("gemma2-9b", "gemma3-12b"),
    **ROW,
)
DOMINANCE = Claim(
    "binding.key_dominance",
    "Keys turn attention more than the query does, the query hardly does, and both together do not cancel.",
    kind="ordering",
    metrics=("dR",),
    statistic="paired difference, and means",
    asserted=("llama3.2-3b", "llama3.1-8b"),
    **ROW,
)
Q_STRONGEST = Claim(
    "binding.q_strongest",
    "The query shift moves the answer more than the key shift.",
    kind="ordering",
    metrics=("dlogit",),
    statistic="paired difference",
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
    "The interventions do the same on the prompts that the model answers correctly as on all.",
    kind="value",
    metrics=("dR", "dlogit"),
    statistic="mean over correct examples less mean over all, and the printed table of the correct ones",
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
