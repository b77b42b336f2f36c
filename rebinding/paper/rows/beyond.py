"""Beyond the paper: what a reviewer would ask of its circuit."""

from __future__ import annotations

from rebinding.paper.claim import Claim

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
