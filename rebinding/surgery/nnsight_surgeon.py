"""The same edits and reads as one nnsight trace: the independent check of the torch surgeon, and the way to NDIF.

Every run is one full forward pass over all rows, or several over `rows` of them each, on the library's own eager
attention, in which nnsight gives values out and takes edited ones back. Nothing is replayed or skipped; only the
checks of a call are shared with the torch surgeon.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import Any

import nnsight
import torch
from nnsight import TransformersModel
from nnsight.tracing.backend import Backend
from torch import Tensor, nn
from transformers import PreTrainedModel

from rebinding.surgery import plan as calls
from rebinding.surgery.anatomy import Anatomy, LayerParts
from rebinding.surgery.batch import Results, of_lines
from rebinding.surgery.calling import hold
from rebinding.surgery.layers import LayerEdit, LayerRead
from rebinding.surgery.memory import PROMPTS
from rebinding.surgery.nnsight_sites import (
    LayerShape,
    ModelShape,
    Remote,
    TraceOutcome,
    TracePlan,
    Write,
    carry_out,
    library_attention,
    wrapped,
)
from rebinding.surgery.plan import check_changed
from rebinding.surgery.recording import RecordedRun, lines
from rebinding.surgery.sites import HEADLESS, Attention, Read, Site, SurgeryError, check_kept_sites, check_tokens
from rebinding.surgery.surgeon import Surgeon

PER_QUERY_HEAD: frozenset[Site] = frozenset({"k_rot", "v_seen"})
"""Sites that hold a copy for every query head."""


class NNsightSurgeon(Surgeon):
    """Carries out edits and reads as nnsight traces; see `rebinding.surgery.sites` for the vocabulary.

    With `remote=True` a trace runs on NDIF, `model` being a `TransformersModel` or loaded from the Hub; with
    `remote="local"` it runs here, after serialisation as for a remote run. `rows` bounds the rows of one trace; by
    default all rows of a run are one trace.
    """

    def __init__(
        self,
        model: PreTrainedModel | TransformersModel,
        anatomy: Anatomy,
        *,
        remote: Remote = False,
        rows: int | None = None,
    ) -> None:
        self.model, self.anatomy, self.remote, self.rows = wrapped(model, remote), anatomy, remote, rows
        self.shape = shape_of(anatomy)

    def prompts_at_once(self, length: int) -> int:
        """As many as the torch surgeon takes on a CPU."""
        return PROMPTS

    def record(self, tokens: Tensor, *, keep: Collection[Site] = ()) -> RecordedRun:
        """Remember prompts (prompt, token), and the sites to `keep` of their unedited run: `z` for frozen attention."""
        check_tokens(self.anatomy, tokens)
        check_kept_sites(keep)
        recording = RecordedRun(tokens, {}, [])
        for site in keep:
            recording.sites[site] = [torch.empty(0)] * self._n_layers(site)  # some layers lack the site
        places = [(site, layer) for site in keep for layer in range(self._n_layers(site)) if self._has(site, layer)]
        if places:
            reads = [self._read_all(site, layer, tokens.shape[1]) for site, layer in places]
            for (site, layer), values in zip(places, self.run_by_layer(recording, [], reads), strict=True):
                recording.sites[site][layer] = values
        return recording

    def with_reads(self, recording: RecordedRun, reads: Sequence[Read]) -> RecordedRun:
        """The recording, unchanged: every run is a full one, and earlier reads shorten none."""
        return recording

    def run_by_layer(
        self,
        recording: RecordedRun,
        edits: Sequence[LayerEdit],
        reads: Sequence[LayerRead],
        *,
        source: Tensor | None = None,
        attention: Attention = "live",
        allow_noop: bool = False,
    ) -> list[Tensor]:
        """Run full forward passes, `rows` prompts each; see `Surgeon.run`."""
        call = calls.make_plan(self.anatomy, recording, edits, reads, source, attention, allow_noop=allow_noop)
        targets: list[LayerEdit | LayerRead] = [*call.edits, *call.reads]
        for target in targets:
            self._check_reach(target)
        frozen = self._recorded_z(recording) if attention == "frozen" else None
        results = Results(call.n_rows, call.reads)
        for rows in torch.arange(call.n_rows).split(self.rows or call.n_rows):
            outcome = self._trace(
                recording.tokens[call.source[rows].to(recording.tokens.device)], self._plan(call, rows, frozen)
            )
            for number in range(len(call.reads)):
                results.put(number, rows, outcome["reads"][number])
            results.note_changes(rows, outcome["changed"])
        check_changed(call.must_change, results.changed_rows())
        return results.ordered()

    def _plan(self, call: calls.Plan, rows: Tensor, frozen: list[Tensor] | None) -> TracePlan:
        """The plan of a trace over some rows of a call."""
        prompts, source = call.source[rows].unique(return_inverse=True)
        places = torch.arange(rows.numel())
        return {
            "shape": self.shape,
            "writes": writes_of(call, rows),
            "reads": [(read.layer, read.site, index(read, places, rows)) for read in call.reads],
            "source": source,
            "sums": call.sums,
            "frozen": frozen and [z[prompts.to(z.device)] for z in frozen],
        }

    @torch.no_grad()
    def _trace(self, tokens: Tensor, plan: TracePlan) -> TraceOutcome:
        if self.remote is not False:
            return trace(self.model, tokens, plan, self.remote)
        module = self.model._module
        with hold(module), library_attention(module):
            return trace(self.model, tokens.to(module.get_input_embeddings().weight.device), plan, False)

    def _n_layers(self, site: Site) -> int:
        return self.anatomy.n_layers + (site == "resid")

    def _read_all(self, site: Site, layer: int, length: int) -> LayerRead:
        parts = self.anatomy.parts[min(layer, self.anatomy.n_layers - 1)]
        heads = parts.n_kv_heads if site in ("k", "v") else parts.n_heads
        return LayerRead(
            site, layer, torch.arange(length)[None], None if site in HEADLESS else torch.arange(heads)[None]
        )

    def _has(self, site: Site, layer: int) -> bool:
        """Whether a layer has a site."""
        if site == "resid_mid":
            return not self.anatomy.lacks_middle
        if site in HEADLESS:
            return True
        return self.anatomy.parts[layer].n_heads > 0

    def _check_reach(self, target: LayerEdit | LayerRead) -> None:
        """Refuse a site for which the library's source has no operation of its own."""
        if target.site in HEADLESS:
            return
        parts = self.anatomy.parts[target.layer]
        attention = self.anatomy.layer_modules(self.model._module)[target.layer].get_submodule(parts.attention)
        is_own = isinstance(target, LayerEdit) and target.scope == "head"
        reason = ""
        if target.site == "scores" and parts.has_sinks:
            reason = "its softmax takes scores and a sink together. Edit pattern"
        elif isinstance(target, LayerEdit) and target.site in ("k", "v") and not parts.has_own_keys:
            reason = f"layer {parts.number} reuses those of layer {parts.key_layer}. Edit them there"
        elif target.site == "v" and is_own:
            reason = "values pass a norm after the projection. Edit v_seen"
        elif target.site == "k" and is_own and parts.rotation not in ("pair", "half"):
            reason = "no single function rotates its queries and keys. Edit k_rot"
        elif (target.site in PER_QUERY_HEAD or is_own) and not _repeats_keys(attention):
            reason = "its attention function does not repeat keys and values. Edit k or v with scope='group'"
        if reason:
            raise SurgeryError(
                f"nnsight cannot reach {target.site} in {type(attention).__name__}: {reason}, or use TorchSurgeon."
            )

    def _recorded_z(self, recording: RecordedRun) -> list[Tensor]:
        if self.anatomy.has_mixers:
            raise SurgeryError(
                "nnsight does not hold what layers without heads put out, so attention='frozen' would be live there. "
                "Use TorchSurgeon, or attention='live'."
            )
        if not recording.has("z"):
            raise SurgeryError("attention='frozen' needs recorded head outputs: record(tokens, keep={'z'})")
        return recording.sites["z"]


def _repeats_keys(attention: nn.Module) -> bool:
    """Whether the file of an attention module, or of a class that it extends, repeats keys for every query head."""
    return any(hasattr(sys.modules[kind.__module__], "repeat_kv") for kind in type(attention).__mro__)


def trace(model: Any, tokens: Tensor, plan: TracePlan, remote: Remote) -> TraceOutcome:
    """One forward pass, local or remote, with the writes and reads of a plan."""
    carrier: dict[str, Any] = {} if remote is False else {"remote": remote}
    carrier = {"backend": remote} if isinstance(remote, Backend) else carrier
    with model.trace(input_ids=tokens, use_cache=False, **carrier):
        outcome = nnsight.save(carry_out(model, plan))
    return outcome  # type: ignore[no-any-return]  # nnsight is untyped


def index(target: LayerEdit | LayerRead, places: Tensor, numbers: Tensor) -> tuple[Tensor, ...]:
    """The lines `numbers` of an edit or read as an index into (row, [head,] position), at rows `places` of a trace."""
    positions = lines(target.positions, numbers)
    if target.heads is None:
        return places[:, None], positions
    return places[:, None, None], lines(target.heads, numbers)[:, :, None], positions[:, None, :]


def writes_of(call: calls.Plan, rows: Tensor) -> dict[tuple[int, str], list[Write]]:
    """The edits of some rows of a call by layer and site, in the order in which they were listed."""
    place = torch.full((call.n_rows,), -1)
    place[rows] = torch.arange(rows.numel())
    writes: dict[tuple[int, str], list[Write]] = {}
    for edit, reached in zip(call.edits, call.reaches, strict=True):
        places = place[calls.touched(edit, call.n_rows)]
        numbers = torch.nonzero(places >= 0).reshape(-1)
        if not numbers.numel():
            continue
        ranks = 3 if edit.heads is None else 4
        write: Write = {
            "index": index(edit, places[numbers], numbers),
            "reached": reached[numbers],
            "value": of_lines(edit.value, ranks, numbers),
            "where": None if edit.where is None else of_lines(edit.where, ranks - 1, numbers),
            "add": edit.mode == "add",
            "own": edit.scope == "head",
        }
        writes.setdefault((edit.layer, edit.site), []).append(write)
    return writes


def shape_of(anatomy: Anatomy) -> ModelShape:
    """The part of a model's anatomy that a trace needs."""
    return {
        "layers": anatomy.layers,
        "streams": anatomy.streams,
        "parts": [_layer_shape(anatomy, parts) for parts in anatomy.parts],
    }


def _layer_shape(anatomy: Anatomy, parts: LayerParts) -> LayerShape:
    sites = ("q", "k", "v") if parts.has_own_keys else ("q",) if parts.n_heads else ()
    width = parts.n_heads * parts.head_dim
    modules: dict[str, tuple[str, str]] = {site: parts.module_of(site) for site in (*sites, "mlp_out")}
    if not anatomy.lacks_middle:
        modules["resid_mid"] = anatomy.last_of_attention(parts), "output"
    return {
        "attention": parts.attention,
        "modules": modules | {"z": (parts.output, "input")},
        "slices": {
            site: (parts.projection(site).start, parts.projection(site).stop, parts.projection(site).width)
            for site in sites
        }
        | {"z": (0, width, width)},
        "n_heads": parts.n_heads,
        "group": parts.group if parts.n_heads else 1,
        "head_dim": parts.head_dim,
        "key_norm": parts.k_norm,
        "factor": 1.0 if anatomy.branches is None else anatomy.branches.factor,
    }
