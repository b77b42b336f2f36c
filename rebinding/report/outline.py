"""The paper's outline: which section a claim belongs to, in the order of the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A section of the page. `begins` is how the ids of its claims begin; the last one takes what no other has."""

    key: str
    title: str
    says: str
    begins: str | None = None


SECTIONS: tuple[Section, ...] = (
    Section(
        "tracing",
        "Section 3: where the answer comes from",
        "Residual interchange, layer by layer and token by token.",
        "tracing.",
    ),
    Section(
        "five",
        "Section 3, with five boxes",
        "The same rows with two more boxes and a distracting swap.",
        "tracing.five_boxes.",
    ),
    Section(
        "circuit",
        "Section 4.1: the circuit",
        "A small set of heads does the task, and its groups form a chain.",
        "circuit.",
    ),
    Section(
        "roles",
        "Section 4.2: what the groups do",
        "Attention patterns exchanged with those of a counterfactual.",
        "roles.",
    ),
    Section(
        "binding",
        "Section 5: binding IDs in queries and keys",
        "Queries and keys of group B shifted from slot to slot.",
        "binding.",
    ),
    Section("robust", "Beyond the paper", "Would the conclusions survive a better experiment?", "robust."),
    Section("other", "Other claims", "Claims of no section of the paper."),
)


def section_of(claim: str) -> str:
    """The key of a claim's section: the one with the longest beginning that fits."""
    fitting = [one for one in SECTIONS if one.begins and claim.startswith(one.begins)]
    return max(fitting, key=lambda one: len(one.begins or ""), default=SECTIONS[-1]).key
