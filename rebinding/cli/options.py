"""Help texts of options that several commands share, so that the same option has the same words everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MODEL = "an alias, ALIAS=FOLDER, a folder, FILE.gguf, a Hub id, planted:MECHANISM or learned:NAME"
"""The names of models that every command takes."""
HELP: Mapping[str, str] = MappingProxyType(
    {
        "--boxes": "boxes of a story (default 3; e.g. --boxes 5)",
        "--device": "auto (all GPUs, or the CPU if there is none), cpu, cuda, cuda:N or mps (default auto)",
        "--dtype": "number format (default: as published for the paper's models, bfloat16 for others on the"
        " Hub, as saved for folders, else float32)",
        "--json": "print JSON and nothing else (default: text)",
        "--no-store": "save no evidence; an interrupted run starts again",
        "--skip-prompts": "skip the first N prompts, to repeat a run on new ones (default 0; e.g. --skip-prompts 400)",
        "--store": "folder of the evidence (default: REBINDING_STORE, else .rebinding)",
    }
)


def design_help(default: str) -> str:
    """The help text of `--design`, whose default differs between commands."""
    return f"design of the stories (default {default}; e.g. --design counterbalanced)"
