"""What was measured, and how it is kept: tables with their settings, activations, the store, blocks."""

from rebinding.evidence.evidence import Evidence, EvidenceError, merge

__all__ = ["Evidence", "EvidenceError", "merge"]
