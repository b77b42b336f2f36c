"""What was measured, and how it is kept: tables with their settings, activations, the store, blocks."""

from rebinding.evidence.evidence import Evidence, EvidenceError, merge
from rebinding.evidence.request import Kind, OnPrompts, PromptSet, Request

__all__ = ["Evidence", "EvidenceError", "Kind", "OnPrompts", "PromptSet", "Request", "merge"]
