"""Mean ablation: almost every head is ablated, and only a few active heads, each at one token, compute their output.

MLPs may be ablated as well; then a few are active like heads.

A run with z fixed everywhere (say, all heads ablated to their mean) is recorded. Then some heads, each at one token,
keep the value that they compute. An ablated head does not depend on its input, so a token without an active head keeps
its recorded residual, keys and values at every layer. Only tokens with active heads are computed: five of a hundred for
a circuit whose groups act at five roles. A row starts at its lowest active head; all below it is recorded.

The layers are the model's own, called with these tokens only. Their queries meet the recorded keys of all other
tokens (`SharedPrefix`) and their own new keys; the mask hides the recorded keys that the new ones replace.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.attention import AttentionStage, SharedPrefix
from rebinding.surgery.calling import Keys, call_layer, watch_module
from rebinding.surgery.recording import LayerCall, OfPrompts, RecordedRun, site_of_module, with_site
from rebinding.surgery.replay import complete_keys, shared_prefix
from rebinding.surgery.sites import SurgeryError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class ActiveHeads:
    """Heads and tokens whose z is computed rather than ablated, as four lists of equal length. A
    negative number in place of a head is the MLP of the layer."""

    rows: Tensor
    layers: Tensor
    heads: Tensor
    positions: Tensor

    def __post_init__(self) -> None:
        lengths = {self.rows.numel(), self.layers.numel(), self.heads.numel(), self.positions.numel()}
        if len(lengths) != 1:
            raise SurgeryError(f"rows, layers, heads and positions of active heads differ in length: {sorted(lengths)}")

    def of_rows(self, rows: Tensor, n_rows: int) -> ActiveHeads:
        """The active heads of some rows; rows are numbered by their place in `rows`."""
        place = torch.full((n_rows,), -1)
        place[rows] = torch.arange(rows.numel())
        mask = place[self.rows] >= 0
        return ActiveHeads(place[self.rows[mask]], self.layers[mask], self.heads[mask], self.positions[mask])


@dataclass(eq=False)
class _MeanAblatedRules:
    """The rules of one layer of a mean-ablated run: z comes from the recording, except at active heads."""

    recording: RecordedRun
    source: Tensor
    columns: Tensor
    active: Tensor

    skip = 0

    def see(self, layer: int, stage: AttentionStage, value: Tensor) -> Tensor:
        if stage != "z":
            return value
        z = self.recording.sites["z"][layer]  # (prompt, head, token, head_dim)
        at, columns = self.source.to(z.device), self.columns.to(z.device)
        recorded_z = z[at[:, None], :, columns].transpose(1, 2)  # (row, head, column, head_dim)
        return torch.where(self.active.to(z.device)[..., None], value, recorded_z)

    def see_mlp(self, parts: LayerParts, active: Tensor, raw: Any) -> Any:
        """The recorded output of an MLP, except where it is active (row, column)."""
        value = site_of_module(parts, "mlp_out", raw, len(self.source))
        recorded = self.recording.sites["mlp_out"][parts.number]  # (prompt, token, width)
        at, columns = self.source.to(recorded.device), self.columns.to(recorded.device)
        ablated = torch.where(active.to(value.device)[..., None], value, recorded[at[:, None], columns].to(value))
        return with_site(parts, "mlp_out", raw, ablated)

    def per_query_head(self, layer: int) -> bool:
        return False

    def prefix(self, layer: int) -> SharedPrefix | None:
        return shared_prefix(self.recording, layer, self.source, self.recording.length)


@torch.no_grad()
def run_mean_ablated(
    model: PreTrainedModel,
    anatomy: Anatomy,
    recording: RecordedRun,
    active: ActiveHeads,
    source: Tensor,
    readout: Tensor,
) -> Tensor:
    """The final residual (row, hidden) at each row's `readout`, for rows that continue recorded prompts `source`. MLPs
    are ablated if the recording has their outputs."""
    needs_all = anatomy.has_mixers or anatomy.counts_tokens  # tokens depend on those between
    columns, column_of = _columns(active, readout, recording.length, needs_all)
    start = torch.full((source.numel(),), anatomy.n_layers)
    start.scatter_reduce_(0, active.rows, active.layers, "amin")
    order = torch.argsort(start, stable=True)
    place = torch.argsort(order)
    start, source, columns = start[order], source[order], columns[order]
    hidden: Tensor | None = None
    sharing: dict[int, Keys] | None = {} if anatomy.shares_keys else None
    for number, layer in enumerate(anatomy.layer_modules(model)):
        n_active = int(torch.searchsorted(start, number, right=True))
        if n_active == 0:
            continue
        hidden = _admit(recording, number, hidden, source[:n_active], columns[:n_active])
        mask = torch.zeros(n_active, anatomy.n_heads, columns.shape[1], dtype=torch.bool)  # (row, head, column)
        here = (active.layers == number) & (active.heads >= 0)
        rows, heads, positions = active.rows[here], active.heads[here], active.positions[here]
        mask[place[rows], heads, column_of[rows, positions]] = True
        rules = _MeanAblatedRules(recording, source[:n_active], columns[:n_active], mask)
        call = _call(recording.calls[number], columns[:n_active], source[:n_active], recording.length, hidden)
        if sharing is not None and not anatomy.parts[number].has_own_keys:
            key_layer = anatomy.parts[number].key_layer
            complete_keys(sharing, recording, key_layer, source[:n_active], columns[:n_active])
        with ExitStack() as hooks:
            if recording.has("mlp_out"):
                at = (active.layers == number) & (active.heads < 0)
                own = torch.zeros(n_active, columns.shape[1], dtype=torch.bool)  # (row, column)
                own[place[active.rows[at]], column_of[active.rows[at], active.positions[at]]] = True
                parts, see = anatomy.parts[number], partial(rules.see_mlp, anatomy.parts[number], own)
                watch_module(hooks, layer, *parts.module_of("mlp_out"), see)
            hidden = call_layer(layer, anatomy, number, hidden, call, rules, shared=sharing)
    hidden = _admit(recording, anatomy.n_layers, hidden, source, columns)
    at = column_of[torch.arange(readout.numel()), readout][order]
    return hidden[torch.arange(at.numel()), at.to(hidden.device)][place.to(hidden.device)]


def _columns(active: ActiveHeads, readout: Tensor, length: int, needs_all: bool) -> tuple[Tensor, Tensor]:
    """The tokens that each row computes, ascending, (row, column), and each token's column, (row, token).

    With `needs_all`, every token. Rows with fewer tokens than the longest row are padded with tokens whose result is
    not used.
    """
    is_computed = torch.full((readout.numel(), length), needs_all)
    is_computed[active.rows, active.positions] = True
    is_computed[torch.arange(readout.numel()), readout] = True
    width = int(is_computed.sum(dim=1).max())
    columns = is_computed.to(torch.int8).argsort(dim=1, descending=True, stable=True)[:, :width].sort(dim=1).values
    column_of = torch.zeros(readout.numel(), length, dtype=torch.long)
    column_of.scatter_(1, columns, torch.arange(width).expand(readout.numel(), -1))
    return columns, column_of


def _admit(recording: RecordedRun, layer: int, hidden: Tensor | None, source: Tensor, columns: Tensor) -> Tensor:
    """The layer's input for all active rows: the residual so far, and the recorded one of rows that start here."""
    resid = recording.sites["resid"][layer]
    n_old = 0 if hidden is None else hidden.shape[0]
    joining = resid[source[n_old:, None].to(resid.device), columns[n_old:].to(resid.device)]  # (row, column, hidden)
    return joining if hidden is None else torch.cat([hidden.to(resid.device), joining])


def _call(call: LayerCall, columns: Tensor, source: Tensor, length: int, hidden: Tensor) -> LayerCall:
    """A layer's keywords for scattered tokens: keys are all recorded tokens, then the columns' own."""
    columns = columns.to(hidden.device)
    changed: LayerCall = {}
    if call["attention_mask"] is not None:
        changed["attention_mask"] = _mask(call["attention_mask"], columns, length, hidden)
    for key, value in call.items():
        if key == "position_embeddings":
            parts = [part.to(hidden.device)[0][columns] for part in (value if isinstance(value, tuple) else (value,))]
            changed[key] = tuple(parts) if isinstance(value, tuple) else parts[0]  # (row, column, head_dim)
        elif isinstance(value, OfPrompts):
            device = value.values.device
            changed[key] = value.values[source[:, None].to(device), columns.to(device)]  # (row, column, width)
        elif key != "attention_mask" and isinstance(value, Tensor):
            changed[key] = value.to(hidden.device).reshape(-1)[columns]
        elif key != "attention_mask":
            changed[key] = value
    return changed


def _mask(mask: Tensor, columns: Tensor, length: int, hidden: Tensor) -> Tensor:
    """The mask (row, 1, column, key) of scattered tokens, from that of the recorded run."""
    mask = mask.to(hidden.device)[0, 0]  # (query, key)
    rows = mask[columns]  # (row, column, key)
    own = rows.gather(2, columns[:, None, :].expand(-1, columns.shape[1], -1))  # (row, column, column)
    replaced = torch.zeros(columns.shape[0], 1, length, dtype=torch.bool, device=hidden.device)
    replaced.scatter_(2, columns[:, None, :], torch.ones_like(columns[:, None, :], dtype=torch.bool))
    rows = rows.masked_fill(replaced, torch.finfo(mask.dtype).min)
    return torch.cat([rows, own], dim=2)[:, None]
