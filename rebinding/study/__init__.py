"""The experiments as the claims need them: which prompts, which settings, kept in the store."""

from rebinding.study.bench import Bench

__all__ = ["Bench"]
