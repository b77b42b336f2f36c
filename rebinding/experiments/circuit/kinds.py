"""The kinds of evidence of section 4.1, with their columns."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rebinding.evidence import Kind

MEASURES = ("label_logit", "margin", "hit", "probability")
"""Of the answer: its logit, its margin over the best other object, whether it beats them all, its probability."""
Which: TypeAlias = Literal["full", "circuit", "less", "random"]
"""The whole model, the circuit, the circuit less some heads, and random circuits of its size."""
VARIANT = ("which", "group", "layer", "head", "draw")
"""The columns that say which circuit a row is of: `group`, `layer` and `head` (-1 for whole groups) are what `less`
lacks, and `draw` numbers the random ones."""
ABLATION = Kind("ablation", ("prompt", *VARIANT, *MEASURES))
KNOCKOUT = Kind("knockout", ("prompt", *VARIANT, *MEASURES, "moved"), edits=("which",), unedited=("which", "full"))
"""`moved` is how far the heads of a variant were from the means that replace them; in the whole model nothing is."""
ELSEWHERE = Kind("elsewhere", ("prompt", *VARIANT, *MEASURES))
"""An ablation on questions that the circuit was not found on, which ask about no swapped box."""
PRUNING = Kind(
    "pruning", ("order", "group", "layer", "head", "role", "whole", "before", "drop", "removed"), unit="order"
)
"""A head tried on a walk: the measure of the whole model, and of what was left of the circuit before the trial."""
CONTRIBUTIONS = Kind("contributions", ("prompt", "group", "layer", "head", "role", "gone", "before", "without"))
"""Whether a prompt is answered with a head of the circuit and without it, beside a set of others that are `gone`."""
STREAM = Kind("stream", ("prompt", "before", "after", "moved"))
"""The answer's margin in a circuit, and with another residual stream at one token of the context; `moved` is how far
the one stream is from the other."""
MEANS = Kind("means", ())
ABILITY = Kind("ability", ("prompt", *MEASURES))
CIRCUITS = Kind("circuits", ("circuit", "prompt", *MEASURES))
"""Any circuits, by any names: what `evaluate` makes."""
KNOCKED = Kind("circuits out", ("circuit", "prompt", *MEASURES, "moved"))
"""The same, taken out of the model: what `knock_out` makes."""
OF_ANSWER = ("logit", "p", "lead")
"""What path patching looks at: the answer's logit, its probability, and its logit less the other objects' mean."""
PATHS = Kind(
    "paths",
    (
        "prompt",
        "stratum",
        "layer",
        "head",
        *(f"{name}_{run}" for run in ("orig", "patch") for name in OF_ANSWER),
        "moved",
    ),
    edits=("prompt",),
)
"""`stratum` is the prompt's (`rebinding.world.strata`), its numbers joined by points."""
