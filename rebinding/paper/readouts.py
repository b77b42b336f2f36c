"""The token at which sections 4.2 and 5 were read, where it may have been one of two.

The released code counts the tokens of a prompt that are no padding, and reads the last of as many. Where a tokenizer
has no padding it is given the token that ends a turn: then the ends of the system's and of the user's turn are not
counted, and what is read is the blank line behind the assistant's header, two tokens before the ':'. Whether the
printed numbers of Llama are such ones cannot be known.

A model that reads from left to right does at a token what it does there in a prompt that ends with it. So prompts that
are two tokens short are what is run, and everything else stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from rebinding.paper.procedure import Readout
from rebinding.world.chat import Form

EARLY = 2
"""Two turns end before the assistant's begins."""
COLON: Mapping[str, int] = MappingProxyType({"at ':'": 0})
EITHER: Mapping[str, int] = MappingProxyType({**COLON, "two tokens before ':'": EARLY})
"""How many tokens of a prompt are left away."""


def readouts(convention: Readout, form: Form | None) -> Mapping[str, int]:
    """Every token that may have been read, by its name; `form` is none where no paper was about the model."""
    return EITHER if convention == "either" and form == "llama3" else COLON
