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
    description: str
    ids: str


SECTIONS: tuple[Section, ...] = (
    Section(
        "tracing",
        "3",
        "Section 3: where the answer comes from",
        "Activation patching of the residual stream, at each layer and token.",
        "tracing",
    ),
    Section(
        "five",
        "3, five boxes",
        "Section 3, with five boxes",
        "The claims of section 3 on prompts with five boxes and a distracting swap.",
        "tracing.five_boxes",
    ),
    Section(
        "circuit",
        "4.1",
        "Section 4.1: the circuit",
        "Path patching and mean ablation: a small set of heads does the task, and its groups form a chain.",
        "circuit",
    ),
    Section(
        "roles",
        "4.2",
        "Section 4.2: what the groups do",
        "Activation patching of each group: attention patterns or outputs come from a counterfactual.",
        "roles",
    ),
    Section(
        "binding",
        "5",
        "Section 5: binding IDs in queries and keys",
        "The queries and keys of group B are shifted from one slot to another.",
        "binding",
    ),
    Section(
        "robust", "beyond", "Beyond the paper", "Further experiments: do the paper's conclusions hold there?", "robust"
    ),
    Section("other", "other", "Other claims", "Claims outside the sections of the paper.", "other"),
)
