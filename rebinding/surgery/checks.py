"""Argument checks shared by all surgeons: indices, words, values, prompts and sources.

Edits and reads check themselves when they are made (`rebinding.surgery.sites`), with the functions here.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy

Index: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | Tensor

INTEGERS = frozenset(
    {torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64, torch.int64}
)
"""The types of tensors that hold whole numbers."""


class SurgeryError(ValueError):
    """An edit or a read is invalid."""


class NothingEdited(SurgeryError):
    """The edits of a row change nothing that is read: the result would be the clean run."""


def _integers(index: Index, what: str) -> Tensor:
    """An index as a tensor of integers. Floats are not rounded, and True is not 1: both are refused."""
    expected = f"{what} must be integers: a number, a range, a list, a table with lines of one length, or a tensor"
    try:
        table = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError) as error:
        raise SurgeryError(f"{expected}; got {reprlib.repr(index)}") from error
    if (table.numel() and table.dtype not in INTEGERS) or _has_bool(index):
        actual = f"a tensor of {index.dtype}" if isinstance(index, Tensor) else reprlib.repr(index)
        raise SurgeryError(f"{expected}; got {actual}")
    return table.long()


def _has_bool(index: object) -> bool:
    if isinstance(index, Tensor):
        return index.dtype == torch.bool
    return isinstance(index, bool) or (isinstance(index, (list, tuple)) and any(map(_has_bool, index)))


def index_table(index: Index, what: str) -> Tensor:
    """An index as a table: one line for all rows, or one line a row."""
    table = _integers(index, what)
    table = table.reshape(1, -1) if table.ndim < 2 else table  # (1 or rows, count)
    if table.ndim != 2 or table.numel() == 0:
        raise SurgeryError(
            f"{what} must be one index, a list of them, or a (rows, count) table; got shape {tuple(table.shape)}"
        )
    if int(table.min()) < 0:
        raise SurgeryError(f"{what} are counted from 0; got {int(table.min())}")
    ordered = table.sort(dim=1).values
    if bool((ordered[:, 1:] == ordered[:, :-1]).any()):
        raise SurgeryError(
            f"{what} name the same index twice in a row: the outcome would depend on the order of writes"
        )
    return table


def batch_rows(rows: Index, edit: str) -> Tensor:
    """The rows of the batch that an edit touches, each once: (touched rows,)."""
    numbers = _integers(rows, "rows").reshape(-1)
    if numbers.numel() == 0:
        raise NothingEdited(f"{edit} lists no rows")
    distinct = numbers.unique()
    if int(distinct[0]) < 0:
        raise SurgeryError(f"rows are counted from 0; {edit} lists row {int(distinct[0])}")
    if distinct.numel() != numbers.numel():
        raise SurgeryError(f"{edit} lists a row twice; list it once, or write two edits")
    return numbers


def layer_number(layer: int) -> int:
    """A layer as an integer."""
    try:
        number = operator.index(layer)
    except TypeError as error:
        raise SurgeryError(f"layer must be an integer; got {reprlib.repr(layer)}") from error
    if isinstance(layer, bool):
        raise SurgeryError(f"layer must be an integer; got {layer}")
    return number


def check_word(option: str, word: str, words: Sequence[str]) -> None:
    """Refuse a word that is not one of an option's choices."""
    if word not in words:
        raise SurgeryError(
            f"unknown {option} {word!r}; write {' or '.join(f'{option}={choice!r}' for choice in words)}"
        )


def check_value(value: Tensor, where: Tensor | None, edit: str) -> None:
    """Refuse values that are no tensor, and masks that are not boolean or true nowhere."""
    if not isinstance(value, Tensor):
        raise SurgeryError(f"the value of {edit} must be a tensor; got {reprlib.repr(value)}. Use torch.tensor(value)")
    if where is None:
        return
    if not isinstance(where, Tensor) or where.dtype != torch.bool:
        actual = f"a tensor of {where.dtype}" if isinstance(where, Tensor) else reprlib.repr(where)
        raise SurgeryError(
            f"the mask of {edit} must be a boolean tensor; got {actual}. Compare it, as in where=mask > 0"
        )
    if not bool(where.any()):
        raise NothingEdited(f"{edit} is masked out everywhere")


def check_tokens(anatomy: Anatomy, tokens: Tensor) -> None:
    """Refuse tokens that are not integers of the vocabulary, (prompt, token), with two or more tokens a prompt."""
    if not isinstance(tokens, Tensor):
        raise SurgeryError(f"tokens must be a tensor (prompt, token); got a {type(tokens).__name__}. Use torch.tensor")
    if tokens.ndim != 2 or tokens.shape[0] < 1 or tokens.shape[1] < 2:
        raise SurgeryError(
            "tokens must be (prompt, token), with at least one prompt and at least two tokens in each; "
            f"got shape {tuple(tokens.shape)}"
        )
    if tokens.dtype not in (torch.int64, torch.int32):
        raise SurgeryError(f"tokens must be integers, torch.int64 or torch.int32; got {tokens.dtype}")
    lowest, highest = torch.stack(tokens.aminmax()).tolist()  # one transfer from the device
    if lowest < 0 or highest >= anatomy.vocabulary:
        raise SurgeryError(
            f"tokens must be in the vocabulary of the model, 0..{anatomy.vocabulary - 1}; got token "
            f"{lowest if lowest < 0 else highest}. Encode prompts with the model's own tokenizer"
        )


def checked_source(source: Tensor | None, n_prompts: int) -> Tensor:
    """The recorded prompt that each row continues, (row,) on the CPU; left out, there is one row for each prompt.

    A list is refused: a call has as many rows as `source` has entries, and everything with rows is a tensor.
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
