"""What does the first mention of a box add? A label in the context, patched beside the one in the swap.

Both mentions of a box are edited. If its label is put back in the context alone, the swap sentence still names another
box, and that the answer stays lost says nothing of where it comes from: that run is not made. At each layer the swap's
label is patched, and then both. What the context adds is `both` less `swap`: nothing, if the model has what it needs
from the swap sentence.

At the input of the first layer both labels together are the original run itself, whatever the model does; so layers are
counted from the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import pandas as pd
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.tokens import BLOCK, blocks, logits_of, moved, positions, token_batch
from rebinding.experiments.tracing.maps import TracedPair, check_pairs, wanted_logits
from rebinding.experiments.tracing.request import MENTION
from rebinding.experiments.tracing.rows import scores
from rebinding.surgery import Edit, Read, Surgeon

PATCHED: Mapping[str, tuple[bool, bool]] = MappingProxyType({"swap": (False, True), "both": (True, True)})
"""Whether the label in the context, and the one in the swap, is the original's."""


def mention(surgeon: Surgeon, pairs: Sequence[TracedPair], *, mode: str, context: str, swap: str) -> Evidence:
    """One row per pair, layer from the second on, and way of patching the roles `context` and `swap`."""
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
    tables = [_rows(surgeon, pairs[part], roles, name, mode) for part in blocks(len(pairs), BLOCK) for name in PATCHED]
    return MENTION.evidence(pd.concat(tables, ignore_index=True), settings)


def _rows(surgeon: Surgeon, pairs: Sequence[TracedPair], roles: tuple[str, str], name: str, mode: str) -> pd.DataFrame:
    """One way of patching, at every layer from the second on."""
    sides = [[pair.original for pair in pairs], [pair.counterfactual for pair in pairs]]
    chosen = [role for role, is_patched in zip(roles, PATCHED[name], strict=True) if is_patched]
    at = torch.stack([positions(sides[0], role) for role in chosen], dim=1)  # (prompt, label)
    layers = range(1, surgeon.anatomy.n_layers)
    originals, recording = (surgeon.record(token_batch(side)) for side in sides)
    reads = [Read("resid", layer, positions=at) for layer in layers]
    given, own = surgeon.run(originals, [], reads), surgeon.run(recording, [], reads)  # (prompt, label, hidden) a layer
    wanted, last = wanted_logits(pairs), len(sides[0][0]) - 1
    base = surgeon.run(recording, [], [Read("logits", positions=last, take=logits_of(wanted))])[0][:, 0].cpu()
    source = torch.arange(len(pairs)).repeat(len(layers))  # (row,), row = layer x prompt
    edits = [
        Edit("resid", layer, values, positions=at, rows=torch.arange(len(pairs)) + place * len(pairs))
        for place, (layer, values) in enumerate(zip(layers, given, strict=True))
    ]
    read = Read("logits", positions=last, take=logits_of(wanted[source]))
    found = surgeon.run(recording, edits, [read], source=source, allow_noop=True)[0][:, 0].cpu()  # (row, candidate)
    logits = found.reshape(len(layers), len(pairs), 1, -1).transpose(0, 1)  # (prompt, layer, 1, candidate)
    change = torch.stack([moved(new, old).amax(1).cpu() for new, old in zip(given, own, strict=True)], dim=1)
    return _table(pairs, layers, logits, base, change).assign(mode=mode, patched=name)


def _table(
    pairs: Sequence[TracedPair], layers: Sequence[int], logits: Tensor, base: Tensor, change: Tensor
) -> pd.DataFrame:
    """Rows from logits (prompt, layer, 1, candidate), those without a patch (prompt, candidate), and what was moved."""
    ids, deep = [pair.id for pair in pairs], len(layers)
    unpatched = base[:, None, None].expand(-1, deep, -1, -1)  # (prompt, layer, 1, candidate)
    columns = {
        **{name: value.reshape(-1) for name, value in scores(pairs, logits).items()},
        **{f"base_{name}": value.reshape(-1) for name, value in scores(pairs, unpatched).items()},
    }
    where = {"prompt": [number for number in ids for _ in layers], "layer": list(layers) * len(ids)}
    return pd.DataFrame({**where, **columns, "moved": change.reshape(-1).numpy()})
