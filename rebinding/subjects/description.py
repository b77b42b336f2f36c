"""What a model says of itself: its configuration and its tokenizer, read without its weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rebinding.subjects.adapted import of_base
from rebinding.subjects.names import Origin

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerFast


def description(found: Origin) -> tuple[PreTrainedConfig, PreTrainedTokenizerFast]:
    """Configuration and tokenizer of a folder, a GGUF file, an adapter's base or a model on the Hub, of which nothing
    else is fetched; refused as loading would refuse them."""
    from transformers import AutoConfig

    from rebinding.subjects.checkpoint import discreet, open_tokenizer
    from rebinding.subjects.gguf import check_gguf, open_gguf_tokenizer

    read: Any = partial(AutoConfig.from_pretrained, local_files_only=True, trust_remote_code=False)
    found = of_base(found)
    if found.kind == "gguf":
        path = Path(found.target)
        check_gguf(path)
        with discreet():
            return read(path.parent, gguf_file=path.name), open_gguf_tokenizer(path)
    folder = folder_of(found)
    with discreet():
        return read(folder), open_tokenizer(folder)


def folder_of(found: Origin) -> Path:
    """The folder in which a model describes itself; one from the Hub is fetched without its weights."""
    from rebinding.subjects.checkpoint import check_architecture
    from rebinding.subjects.files import check_description
    from rebinding.subjects.hub import fetch

    folder = Path(found.target) if found.kind == "folder" else fetch(found.target, found.revision)
    check_description(folder)
    check_architecture(folder)
    return folder
