"""What does the first mention of a box add? Patch a box label in the swap alone, and together with the one in the
context.

In the counterfactual both mentions of a box are edited. A patch of the context label alone is not run: the swap
sentence would still name another box, so a lost answer would say nothing about the context. At each layer, one run
patches the swap label and one both labels. The context adds `both` minus `swap`: nothing, if the model takes what it
needs from the swap sentence.

At the input of the first layer a patch of both labels is the original run itself, whatever the model does; so layers
start at the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.tokens import positions, prompt_blocks, relative_change, token_batch
from rebinding.experiments.tracing.maps import TracedPair, candidate_tokens, check_pairs
from rebinding.experiments.tracing.request import MENTION
from rebinding.experiments.tracing.rows import scores
from rebinding.surgery import Edit, LogitsOf, Read, Recording, Surgeon
from rebinding.surgery.sweep import sweep

PATCHED: Mapping[str, tuple[bool, bool]] = MappingProxyType({"swap": (False, True), "both": (True, True)})
"""Whether the context label, and the swap label, is patched with the original's."""


def mention(surgeon: Surgeon, pairs: Sequence[TracedPair], *, mode: str, context: str, swap: str) -> Evidence:
    """Patch the roles `context` and `swap`: a row per pair, layer from the second on, and entry of `PATCHED`."""
    check_pairs(pairs)
    roles = (context, swap)
    settings = {
        "mode": mode,
        "site": "resid",
        "direction": "original into counterfactual",
        "roles": list(roles),
        "patched": list(PATCHED),
        "surgeon": type(surgeon).__name__,
    }
    tables = []
    for part in prompt_blocks(surgeon, [pair.original for pair in pairs]):
        sides = [[pair.original for pair in pairs[part]], [pair.counterfactual for pair in pairs[part]]]
        originals, recording = (surgeon.record(token_batch(side)) for side in sides)
        for name in PATCHED:
            rows = _rows(surgeon, originals, recording, pairs[part], roles, name)
            tables.append(rows.assign(mode=mode, patched=name))
    return MENTION.evidence(pd.concat(tables, ignore_index=True), settings)


def _rows(
    surgeon: Surgeon,
    originals: Recording,
    recording: Recording,
    pairs: Sequence[TracedPair],
    roles: tuple[str, str],
    name: str,
) -> pd.DataFrame:
    """The rows of one entry of `PATCHED`, at every layer from the second on."""
    patched_roles = [role for role, is_patched in zip(roles, PATCHED[name], strict=True) if is_patched]
    prompts = [pair.original for pair in pairs]
    at = torch.stack([positions(prompts, role) for role in patched_roles], dim=1)  # (prompt, label)
    layers = range(1, surgeon.anatomy.n_layers)
    reads = [Read("resid", layer, positions=at) for layer in layers]
    new, old = surgeon.run(originals, [], reads), surgeon.run(recording, [], reads)  # (prompt, label, hidden) a layer
    candidates, last = candidate_tokens(pairs), recording.length - 1
    read = Read("logits", positions=last, reduce=LogitsOf(candidates))
    edits = [[Edit("resid", layer, values, positions=at)] for layer, values in zip(layers, new, strict=True)]
    (results,) = sweep(surgeon, recording, [[], *edits], [read], allow_noop=True)  # (variant, prompt, 1, candidate)
    base, logits = results[0, :, 0].cpu(), results[1:].cpu().transpose(0, 1)  # (prompt, layer, 1, candidate)
    change = torch.stack([relative_change(*values).amax(1).cpu() for values in zip(new, old, strict=True)], dim=1)
    return _table(pairs, layers, logits, base, change)


def _table(
    pairs: Sequence[TracedPair], layers: Sequence[int], logits: Tensor, base: Tensor, change: Tensor
) -> pd.DataFrame:
    """Rows from patched logits (prompt, layer, 1, candidate), unpatched ones (prompt, candidate), and relative
    changes."""
    ids, depth = [pair.id for pair in pairs], len(layers)
    unpatched = base[:, None, None].expand(-1, depth, -1, -1)  # (prompt, layer, 1, candidate)
    columns = {
        **{name: value.reshape(-1) for name, value in scores(pairs, logits).items()},
        **{f"base_{name}": value.reshape(-1) for name, value in scores(pairs, unpatched).items()},
    }
    where = {"prompt": [number for number in ids for _ in layers], "layer": list(layers) * len(ids)}
    return pd.DataFrame({**where, **columns, "relative_change": change.reshape(-1).numpy()})
