"""Evidence and its storage: tables with their settings, activations, requests, blocks, and the store."""

from rebinding.evidence.evidence import Evidence, EvidenceError, merge
from rebinding.evidence.request import Kind, OnPrompts, PromptSet, Request

__all__ = ["Evidence", "EvidenceError", "Kind", "OnPrompts", "PromptSet", "Request", "merge"]
