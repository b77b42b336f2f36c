"""Section 3: where does the answer come from? Residual interchange at every layer and token.

The residual of the *original* run, at the input of one layer and at one token, is written into the run of its
*counterfactual*; then the logits at the readout say whether the original's answer is back. One such cell costs a full
forward pass if done naively. Two facts make the map cheap and leave every number as it is:

* by causality the residuals of a pair agree before the first token in which its prompts differ, and at layer 0 wherever
  the tokens agree. Such a cell writes what is there already: it is given the unpatched logits and not run;
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
from rebinding.experiments.tokens import BLOCK, blocks, logits_of, moved, token_batch
from rebinding.experiments.tracing.request import TRACING
from rebinding.experiments.tracing.rows import rows_of
from rebinding.surgery import Edit, Read, Recording, Surgeon
from rebinding.task.prompts import Encoded, PromptError, aligned

Cells: TypeAlias = Tensor
"""(prompt, layer, token) booleans."""


@dataclass(frozen=True)
class TracedPair:
    """An original and its counterfactual as tokens, and how an answer is scored.

    `candidates` are the answer tokens of the original's objects after its operations, in the order of the boxes;
    `answer` is the place of the right one among them. `rival` is the token of the counterfactual's answer, None if the
    counterfactual has none.
    """

    id: int
    original: Encoded
    counterfactual: Encoded
    candidates: tuple[int, ...]
    answer: int
    rival: int | None

    @property
    def changes_answer(self) -> bool:
        """Whether the counterfactual's answer is not the original's (also if it has none)."""
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
    run_no_ops: bool = False,
) -> Evidence:
    """The map of one mode: one row per pair x layer x token (columns: `rebinding.experiments.tracing.rows`).

    `layers` are inputs of decoder layers, all of them by default; `tokens` all by default. With `roles` a pair has rows
    for those of its own tokens that have one of these roles, wherever they stand in the other pairs (`context_box` is
    the label of every slot). `run_no_ops` runs the cells that cannot change anything as well: slower, the same numbers.
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
        "run_no_ops": run_no_ops,
        "surgeon": type(surgeon).__name__,
    }
    tables = [_map(surgeon, pairs[part], mode, layers, tokens, roles, run_no_ops) for part in blocks(len(pairs), BLOCK)]
    return merge([TRACING.evidence(table, settings) for table in tables])


def _map(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    mode: str,
    layers: Sequence[int],
    tokens: Sequence[int] | None,
    roles: Sequence[str] | None,
    run_no_ops: bool,
) -> pd.DataFrame:
    """The map of a block of pairs, whose recordings are in memory at once."""
    every = range(len(pairs[0].original)) if tokens is None else tokens
    wanted = list(
        every if roles is None else sorted({at for pair in pairs for at in _having(pair, roles)} & set(every))
    )
    asked = _asked(pairs, wanted, roles).expand(-1, len(layers), -1)  # (prompt, layer, token)
    cells = asked if run_no_ops else asked & changing(pairs, layers, wanted)
    patched = patched_logits(surgeon, pairs, cells, layers=layers, tokens=wanted)
    rows = rows_of(mode, pairs, cells, patched.moved, patched.logits, patched.base, layers, wanted)
    return rows[asked.reshape(-1).numpy()].reset_index(drop=True)


def changing(pairs: Sequence[TracedPair], layers: Sequence[int], tokens: Sequence[int]) -> Cells:
    """The cells that can change something: from the first differing token on, and at layer 0 differing tokens only."""
    return torch.stack([cells_of(pair.differing, layers, tokens) for pair in pairs])  # (prompt, layer, token)


def cells_of(differing: Sequence[int], layers: Sequence[int], tokens: Sequence[int]) -> Tensor:
    """The cells of one pair that can change something: (layer, token)."""
    token, above = torch.tensor(tokens), torch.tensor(layers)[:, None] > 0  # (token,), (layer, 1)
    return (above & (token > min(differing))) | torch.isin(token, torch.tensor(differing))


def _having(pair: TracedPair, roles: Sequence[str]) -> set[int]:
    """The tokens of a pair that have one of these roles."""
    return {at for name, at in pair.original.roles.items() if name.partition("[")[0] in roles}


def _asked(pairs: Sequence[TracedPair], tokens: Sequence[int], roles: Sequence[str] | None) -> Tensor:
    """The tokens that are asked for in each pair: (prompt, 1, token)."""
    wanted = [[roles is None or token in _having(pair, roles) for token in tokens] for pair in pairs]
    return torch.tensor(wanted)[:, None]


@dataclass(frozen=True, eq=False)
class Patched:
    """Logits at the readout of the candidates and the rival, patched (prompt, layer, token, candidate) and not (prompt,
    candidate), and how far each patch was from what it replaced (prompt, layer, token)."""

    logits: Tensor
    base: Tensor
    moved: Tensor


def patched_logits(
    surgeon: Surgeon,
    pairs: Sequence[TracedPair],
    cells: Cells,
    *,
    layers: Sequence[int],
    tokens: Sequence[int],
) -> Patched:
    """Patch every cell alone.

    Where a pair has no rival its answer stands in that column. Cells that are not run have the unpatched logits.
    """
    length, wanted = len(pairs[0].original), wanted_logits(pairs)
    originals = surgeon.record(token_batch([pair.original for pair in pairs]))
    recording = surgeon.record(token_batch([pair.counterfactual for pair in pairs]))
    given, own = (_residuals(surgeon, one, layers, tokens) for one in (originals, recording))
    changes = torch.stack([moved(new, old).cpu() for new, old in zip(given, own, strict=True)], dim=1)
    base = surgeon.run(recording, [], [_readout(wanted, length)])[0][:, 0].cpu()  # (prompt, candidate)
    logits = base[:, None, None].repeat(1, len(layers), len(tokens), 1)  # (prompt, layer, token, candidate)
    for column, token in enumerate(tokens):
        layer, source = cells[:, :, column].T.nonzero(as_tuple=True)  # one row each, ordered by layer
        if not source.numel():
            continue
        edits = [
            Edit("resid", layers[number], given[number][source[rows], column, None], positions=token, rows=rows)
            for number in layer.unique().tolist()
            for rows in [torch.nonzero(layer == number).reshape(-1)]
        ]
        # A patch may write what is there already (two tokens, one residual): then the cell is the unpatched run.
        read = _readout(wanted[source], length)
        found = surgeon.run(recording, edits, [read], source=source, allow_noop=True)[0]  # (row, 1, candidate)
        logits[source, layer, column] = found[:, 0].cpu()
    return Patched(logits, base, changes)


def _residuals(surgeon: Surgeon, recording: Recording, layers: Sequence[int], tokens: Sequence[int]) -> list[Tensor]:
    """Residuals of unedited prompts, one (prompt, token, hidden) a layer."""
    return surgeon.run(recording, [], [Read("resid", layer, positions=tokens) for layer in layers])


def _readout(wanted: Tensor, length: int) -> Read:
    return Read("logits", positions=length - 1, take=logits_of(wanted))


def wanted_logits(pairs: Sequence[TracedPair]) -> Tensor:
    """The tokens whose logits are kept: the candidates, and the rival (the answer again, where there is none)."""
    lines = [[*pair.candidates, pair.candidates[pair.answer] if pair.rival is None else pair.rival] for pair in pairs]
    return torch.tensor(lines)  # (prompt, candidate)


def check_pairs(pairs: Sequence[TracedPair]) -> None:
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
