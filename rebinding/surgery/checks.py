"""What every surgeon checks of a call, so that all of them refuse the same, with the same messages.

Edits and reads check themselves (`rebinding.surgery.sites`); here is what is not part of one: the prompts of a
recording, the sites that it keeps, and which prompt each row continues.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.errors import SurgeryError
from rebinding.surgery.indices import INTEGERS
from rebinding.surgery.sites import SITES


def check_tokens(anatomy: Anatomy, tokens: Tensor) -> None:
    """Refuse what a model cannot run: tokens are integers of its vocabulary, (prompt, token), two or more a prompt."""
    if not isinstance(tokens, Tensor):
        raise SurgeryError(f"tokens must be a tensor (prompt, token); got a {type(tokens).__name__}. Use torch.tensor")
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise SurgeryError(
            "tokens must be (prompt, token), with at least one prompt and at least two tokens in each; "
            f"got shape {tuple(tokens.shape)}"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise SurgeryError(f"tokens must be integers, torch.int64 or torch.int32; got {tokens.dtype}")
    lowest, highest = torch.stack(tokens.aminmax()).tolist()  # one trip from a device
    if lowest < 0 or highest >= anatomy.vocabulary:
        raise SurgeryError(
            f"tokens must be in the vocabulary of the model, 0..{anatomy.vocabulary - 1}; got token "
            f"{lowest if lowest < 0 else highest}. Encode prompts with the model's own tokenizer"
        )


def check_kept_sites(keep: Collection[str]) -> None:
    """Refuse sites that no recording keeps."""
    if isinstance(keep, str):
        raise SurgeryError(f"keep must be a set of sites; got the word {keep!r}. Write keep={{{keep!r}}}")
    names = list(keep)
    if "logits" in names:
        raise SurgeryError("logits are not kept for every token; read them where they are wanted")
    unknown = [name for name in names if name not in SITES]
    if unknown:
        raise SurgeryError(f"keep names the unknown site {unknown[0]!r}; the sites are {', '.join(SITES)}")


def checked_source(source: Tensor | None, n_prompts: int) -> Tensor:
    """The recorded prompt that each row continues, (row,) on the CPU; left out, there is one row for each prompt.

    A list is refused: a call has as many rows as `source` has entries, so it is a tensor like all that has rows.
    """
    if source is None:
        return torch.arange(n_prompts)
    expected = "source must be a 1-d integer tensor, the number of a recorded prompt for each row"
    if not isinstance(source, Tensor):
        raise SurgeryError(f"{expected}; got a {type(source).__name__}. Use torch.tensor")
    if source.ndim != 1 or source.numel() == 0 or source.dtype not in INTEGERS:
        raise SurgeryError(f"{expected}; got {source.dtype} of shape {tuple(source.shape)}")
    source = source.cpu().long()
    lowest, highest = int(source.min()), int(source.max())
    if lowest < 0 or highest >= n_prompts:
        raise SurgeryError(
            f"source names prompt {lowest if lowest < 0 else highest}; the recording has prompts 0..{n_prompts - 1}"
        )
    return source
