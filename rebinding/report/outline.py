"""The paper's outline: the sections of the page, in its order."""

from __future__ import annotations

from dataclasses import dataclass

from rebinding.paper.claim import SectionName


@dataclass(frozen=True)
class Section:
    """A section of the page. `ids` is the common prefix of the ids of its claims."""

    key: SectionName
    short: str
    title: str
    says: str
    ids: str


SECTIONS: tuple[Section, ...] = (
    Section(
        "tracing",
        "3",
        "Section 3: where the answer comes from",
        "Residual interchange, layer by layer and token by token.",
        "tracing",
    ),
    Section(
        "five",
        "3, five boxes",
        "Section 3, with five boxes",
        "The same rows with two more boxes and a distracting swap.",
        "tracing.five_boxes",
    ),
    Section(
        "circuit",
        "4.1",
        "Section 4.1: the circuit",
        "A small set of heads does the task, and its groups form a chain.",
        "circuit",
    ),
    Section(
        "roles",
        "4.2",
        "Section 4.2: what the groups do",
        "Attention patterns exchanged with those of a counterfactual.",
        "roles",
    ),
    Section(
        "binding",
        "5",
        "Section 5: binding IDs in queries and keys",
        "Queries and keys of group B shifted from slot to slot.",
        "binding",
    ),
    Section("robust", "beyond", "Beyond the paper", "Would the conclusions survive a better experiment?", "robust"),
    Section("other", "other", "Other claims", "Claims of no section of the paper.", "other"),
)
