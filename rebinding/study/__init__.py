"""What a model is asked, one file per section: which prompts, which settings, what is remembered."""

from rebinding.study.bench import Bench

__all__ = ["Bench"]
