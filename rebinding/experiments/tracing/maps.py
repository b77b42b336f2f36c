"""Section 3: where does the answer come from? Residual interchange at every layer and token.

The residual of the *original* run, at the input of one layer and at one token, is written into the run of its
*counterfactual*; the logits at the readout then show whether the original's answer is restored. Naively, one such cell
costs a full forward pass. Two facts make the map cheap and change no number:

* by causality the residuals of a pair agree before the first token in which its prompts differ, and at layer 0 wherever
  the tokens agree. Such a cell is a no-op: it gets the unpatched logits and is not run;
* a cell cannot change layers below its own or tokens before its own. All layers of a token are one batch that grows
  layer by layer and computes that token and those after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence, merge
from rebinding.experiments.tokens import prompt_blocks, relative_change, token_batch
from rebinding.experiments.tracing.request import TRACING
from rebinding.experiments.tracing.rows import rows_of
from rebinding.surgery import Edit, LogitsOf, Read, Recording, Surgeon
from rebinding.surgery.sweep import sweep
from rebinding.task.prompts import PromptError, TokenizedPrompt, aligned

Cells: TypeAlias = Tensor
"""(prompt, layer, token) booleans."""


@dataclass(frozen=True)
class TracedPair:
    """An original and its counterfactual as tokens, with the candidates that score an answer.

    `candidates` are the answer tokens of the original's objects after its operations, in the order of the boxes;
    `answer` is the place of the right one among them. `rival` is the token of the counterfactual's answer; None: it has
    no answer.
    """

    id: int
    original: TokenizedPrompt
    counterfactual: TokenizedPrompt
    candidates: tuple[int, ...]
    answer: int
    rival: int | None

    @property
    def changes_answer(self) -> bool:
        """Whether the counterfactual's answer differs from the original's (also if it has none)."""
        return self.rival != self.candidates[self.answer]

    @property
    def differing(self) -> tuple[int, ...]:
        """The tokens in which the two prompts differ."""
        return aligned(self.original, self.counterfactual)


def trace(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    *,
    mode: str,
    layers: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    roles: Sequence[str] | None = None,
) -> Evidence:
    """The map of one mode: one row per pair x layer x token (columns: `rebinding.experiments.tracing.rows`).

    `layers` are inputs of decoder layers; all layers and all `tokens` by default. With `roles`, a pair has rows only
    for its own tokens with one of these roles, whatever their positions in other pairs (`context_box` is the label of
    every slot).
    """
    check_pairs(pairs)
    layers = list(range(surgeon.anatomy.n_layers) if layers is None else layers)
    settings = {
        "mode": mode,
        "site": "resid",
        "direction": "original into counterfactual",
        "layers": layers,
        "tokens": None if tokens is None else list(tokens),
        "roles": None if roles is None else list(roles),
        "length": len(pairs[0].original),
        "surgeon": type(surgeon).__name__,
    }
    tables = [
        _map(surgeon, pairs[part], mode, layers, tokens, roles)
        for part in prompt_blocks(surgeon, [pair.original for pair in pairs])
    ]
    return merge([TRACING.evidence(table, settings) for table in tables])


def _map(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    mode: str,
    layers: Sequence[int],
    tokens: Sequence[int] | None,
    roles: Sequence[str] | None,
) -> pd.DataFrame:
    """The map of a block of pairs; their recordings are in memory together."""
    allowed = range(len(pairs[0].original)) if tokens is None else tokens
    columns = list(
        allowed if roles is None else sorted({at for pair in pairs for at in _tokens_with(pair, roles)} & set(allowed))
    )
    requested = _has_role(pairs, columns, roles).expand(-1, len(layers), -1)  # (prompt, layer, token)
    cells = requested & changing(pairs, layers, columns)
    patched = patched_logits(surgeon, pairs, cells, layers=layers, tokens=columns)
    rows = rows_of(mode, pairs, cells, patched.relative_change, patched.logits, patched.base, layers, columns)
    return rows[requested.reshape(-1).numpy()].reset_index(drop=True)


def changing(pairs: Sequence[TracedPair], layers: Sequence[int], tokens: Sequence[int]) -> Cells:
    """The cells that are not no-ops: from the first differing token on; at layer 0 only differing tokens."""
    return torch.stack([cells_of(pair.differing, layers, tokens) for pair in pairs])  # (prompt, layer, token)


def cells_of(differing: Sequence[int], layers: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """The cells of one pair that are not no-ops: (layer, token)."""
    token, above = torch.tensor(tokens), torch.tensor(layers)[:, None] > 0  # (token,), (layer, 1)
    return (above & (token > min(differing))) | torch.isin(token, torch.tensor(differing))


def _tokens_with(pair: TracedPair, roles: Sequence[str]) -> set[int]:
    """The tokens of a pair with one of these roles."""
    return {at for name, at in pair.original.roles.items() if name.partition("[")[0] in roles}


def _has_role(pairs: Sequence[TracedPair], tokens: Sequence[int], roles: Sequence[str] | None) -> Tensor:
    """Whether each token of each pair has one of these roles (all if None): (prompt, 1, token)."""
    rows = [[roles is None or token in _tokens_with(pair, roles) for token in tokens] for pair in pairs]
    return torch.tensor(rows)[:, None]


@dataclass(frozen=True, eq=False)
class Patched:
    """Logits at the readout of the candidates and the rival, patched (prompt, layer, token, candidate) and unpatched
    (prompt, candidate), and the relative change of each patch (prompt, layer, token)."""

    logits: Tensor
    base: Tensor
    relative_change: Tensor


def patched_logits(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    cells: Cells,
    *,
    layers: Sequence[int],
    tokens: Sequence[int],
) -> Patched:
    """Patch each cell in a run of its own.

    If a pair has no rival, its answer fills that column. Cells that are not run have the unpatched logits.
    """
    length, candidates = len(pairs[0].original), candidate_tokens(pairs)
    originals = surgeon.record(token_batch([pair.original for pair in pairs]))
    recording = surgeon.record(token_batch([pair.counterfactual for pair in pairs]))
    new, old = (_residuals(surgeon, side, layers, tokens) for side in (originals, recording))
    changes = torch.stack([relative_change(*values).cpu() for values in zip(new, old, strict=True)], dim=1)
    read = Read("logits", positions=length - 1, reduce=LogitsOf(candidates))
    base = surgeon.run(recording, [], [read])[0][:, 0].cpu()  # (prompt, candidate)
    logits = base[:, None, None].repeat(1, len(layers), len(tokens), 1)  # (prompt, layer, token, candidate)
    for column, token in enumerate(tokens):
        rows_of_layer = [torch.nonzero(of_layer)[:, 0] for of_layer in cells[:, :, column].T]
        patched = [number for number, rows in enumerate(rows_of_layer) if len(rows)]
        edits = [
            [Edit("resid", layers[number], new[number][rows, column, None], positions=token, rows=rows)]
            for number in patched
            for rows in [rows_of_layer[number]]
        ]
        if edits:  # a patch may be a no-op (two tokens, one residual): then the cell is the unpatched run
            (values,) = sweep(surgeon, recording, edits, [read], allow_noop=True)  # (layer, prompt, 1, candidate)
            logits[:, patched, column] = values[:, :, 0].cpu().transpose(0, 1)
    return Patched(logits, base, changes)


def _residuals(surgeon: Surgeon, recording: Recording, layers: Sequence[int], tokens: Sequence[int]) -> list[Tensor]:
    """Residuals of unedited prompts, one (prompt, token, hidden) a layer."""
    return surgeon.run(recording, [], [Read("resid", layer, positions=tokens) for layer in layers])


def candidate_tokens(pairs: Sequence[TracedPair]) -> Tensor:
    """The tokens whose logits are kept: the candidates, and the rival (or the answer, if there is no rival)."""
    lines = [[*pair.candidates, pair.candidates[pair.answer] if pair.rival is None else pair.rival] for pair in pairs]
    return torch.tensor(lines)  # (prompt, candidate)


def check_pairs(pairs: Sequence[TracedPair]) -> None:
    """Refuse pairs that cannot be traced together."""
    if not pairs:
        raise PromptError("no pairs to trace; tracing needs at least one")
    token_batch([side for pair in pairs for side in (pair.original, pair.counterfactual)])
    for pair in pairs:
        if not pair.differing:
            raise PromptError(f"pair {pair.id} is one prompt twice: no patch can change anything; use another mode")
        if len(pair.candidates) != len(pairs[0].candidates):
            raise PromptError(
                f"pair {pair.id} has {len(pair.candidates)} candidates, pair {pairs[0].id} {len(pairs[0].candidates)};"
                " trace stories with equally many boxes together"
            )
