"""The five headline claims, those of the paper's abstract. The field `headline` of a claim names one of them."""

from __future__ import annotations

from dataclasses import dataclass

TITLE = "A retrieval conditioned rebinding circuit for dynamic entity tracking in large language models"
AUTHORS = "Soyoung Oh and Vera Demberg"


@dataclass(frozen=True)
class Headline:
    """A headline claim: its number, a title for one line of a table, and the claim in plain words."""

    number: int
    title: str
    statement: str


HEADLINES: tuple[Headline, ...] = (
    Headline(
        1,
        "a small circuit recovers most of the task",
        "With all other heads held at their mean, the circuit recovers most of the task and answers at least three"
        " quarters as many prompts as the full model.",
    ),
    Headline(
        2,
        "group B is the pointer",
        "Group B carries the place of the answer, more than groups A, C and D do, and changes a new object in that"
        " place by less than half as much.",
    ),
    Headline(
        3,
        "query and key shifts cancel (Gemma)",
        "Shifting the queries of group B turns its attention, shifting the keys does too, and of both at once less than"
        " half of either is left, and little toward either slot.",
    ),
    Headline(
        4,
        "keys dominate (Llama)",
        "Shifting the keys turns the attention of group B more than twice as far as shifting the queries, and more than"
        " half of it remains when both are shifted.",
    ),
    Headline(
        5,
        "families differ; resolved at retrieval",
        "Under one convention Gemma models cancel and Llama models are dominated by keys. Patching the readout moves"
        " the answer more than patching the swap's full stop.",
    ),
)
"""In the order of the abstract."""
