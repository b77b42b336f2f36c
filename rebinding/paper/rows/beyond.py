"""Beyond the paper: what a reviewer would ask of its circuit."""

from __future__ import annotations

from typing import Any

from rebinding.paper.claim import Claim

CROSSED: dict[str, Any] = {
    "source": "beyond the paper",
    "kind": "effect",
    "metrics": ("dlogit",),
    "n": 96,
    "asserted": (),
    "procedure": "controlled",
}

INTERCHANGE = Claim(
    "beyond.interchange",
    "Real queries of group B, or real keys, turn its attention where the mean direction of their slots does not.",
    "beyond the paper",
    "effect",
    ("dR",),
    "mean dR, above 0 and above that of the mean direction on the same cases: of the query of the same story with a"
    " question about the box whose object stands in slot j, or of the keys of slots i and j exchanged",
    "each head of group B, at the readout; raw projections; read on box and object; all ordered slot pairs",
    unit="nested",
    n=180,
    groups=("B",),
    asserted=(),
    procedure="controlled",
)
STATIC = Claim(
    "beyond.static_and_bystander",
    "The circuit's heads also answer without a swap, and about the box that the swap does not name; static tracking is"
    " done by them.",
    "beyond the paper",
    "ordering",
    ("margin", "accuracy"),
    "the answer's margin over the other objects less that in random circuits, draws crossed with prompts; the share of"
    " prompts answered, above chance; overlap of groups A to C with those that path patching finds without a swap",
    "the circuit's heads whose tokens are there, all others at their mean over counterbalanced prompts; random circuits"
    " matched by layer",
    unit="nested",
    groups=("A",),
    asserted=(),
    procedure="controlled",
)
NECESSARY = Claim(
    "beyond.necessary",
    "Without the circuit's heads the model answers fewer prompts than without as many others of the same layers: no"
    " other heads do what they do.",
    "beyond the paper",
    "ordering",
    ("accuracy",),
    "hits without random sets of other heads less hits without the circuit's, draws crossed with prompts",
    "the circuit's heads at their tokens, held at their mean over counterbalanced prompts; all other heads as they are",
    unit="nested",
    groups=("A",),
    asserted=(),
    procedure="controlled",
)
ROUTE = Claim(
    "beyond.route_through_swap_labels",
    "What the swap says leaves it by its labels, and not by another of its tokens.",
    statistic="what the answer's lead over the other objects loses without the messages that leave from the swap's"
    " labels, less what it loses without those from its other tokens, in logits: above 0 if the labels have more than"
    " half",
    where="the heads at tokens that a search finds which is told no place: those in the swap as senders, later ones as"
    " receivers; path patching on prompts that the search did not see, about a box that is swapped",
    long=True,
    **CROSSED,
)
PLACES = Claim(
    "beyond.groups_at_their_places",
    "What carries from the context to the swap, from the swap to the question and from the question to the readout"
    " stands where the paper puts groups E, D and C: at a label.",
    statistic="of each crossing the same difference, labels less all other tokens of the sentence; all three above 0",
    where="the heads at tokens that a search finds which is told no place, from part to part; path patching on prompts"
    " that the search did not see, about a box that is swapped",
    long=True,
    **CROSSED,
)
OTHER: dict[str, Any] = {
    "source": "beyond the paper, its own future work",
    "kind": "ordering",
    "metrics": ("accuracy",),
    "statistic": "hits of the circuit less those of random circuits, draws crossed with prompts",
    "unit": "nested",
    "groups": ("A",),
    "asserted": (),
    "procedure": "controlled",
}
ABLATED = "the circuit's heads, all others at their mean over counterbalanced prompts; random circuits matched by layer"
REFILL = Claim(
    "beyond.put_remove",
    "The circuit found on swaps also answers where a box is emptied and something new is put there, about this box and"
    " about others.",
    where=f"{ABLATED}; heads whose tokens are not there are held",
    **OTHER,
)
MANY = Claim(
    "beyond.many_boxes",
    "The circuit found on three boxes also answers with seven.",
    where=f"{ABLATED}; the published questions, with four more boxes behind",
    **OTHER,
)
NARRATIVE = Claim(
    "beyond.narrative",
    "The circuit also answers where sentences that have nothing to do with boxes stand around the statements.",
    where=f"{ABLATED}; counterbalanced prompts",
    **OTHER,
)
