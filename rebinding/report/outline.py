"""The paper's outline: which section a claim belongs to, in the order of the page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A section of the page. `begins` is how the ids of its claims begin; the last one takes what no other has."""

    key: str
    short: str
    title: str
    says: str
    begins: tuple[str, ...] = ()


SECTIONS: tuple[Section, ...] = (
    Section(
        "tracing",
        "3",
        "Section 3: where the answer comes from",
        "Residual interchange, layer by layer and token by token.",
        ("tracing.",),
    ),
    Section(
        "five",
        "3, five boxes",
        "Section 3, with five boxes",
        "The same rows with two more boxes and a distracting swap.",
        ("tracing.five_boxes.",),
    ),
    Section(
        "circuit",
        "4.1",
        "Section 4.1: the circuit",
        "A small set of heads does the task, and its groups form a chain.",
        ("circuit.",),
    ),
    Section(
        "roles",
        "4.2",
        "Section 4.2: what the groups do",
        "Attention patterns exchanged with those of a counterfactual.",
        ("roles.",),
    ),
    Section(
        "binding",
        "5",
        "Section 5: binding IDs in queries and keys",
        "Queries and keys of group B shifted from slot to slot.",
        ("binding.",),
    ),
    Section(
        "robust",
        "beyond",
        "Beyond the paper",
        "Would the conclusions survive a better experiment?",
        ("robust.", "beyond."),
    ),
    Section("other", "other", "Other claims", "Claims of no section of the paper."),
)


def section_of(claim: str) -> str:
    """The key of a claim's section: the one with the longest beginning that fits."""
    fitting = [(len(begin), one.key) for one in SECTIONS for begin in one.begins if claim.startswith(begin)]
    return max(fitting, default=(0, SECTIONS[-1].key))[1]
