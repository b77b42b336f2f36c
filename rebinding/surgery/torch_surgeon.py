"""The fast surgeon: plain torch on the model's own modules; it replays only what an edit can change.

**Frozen attention**, for layers whose parts are known: positions are independent, so few are computed.

With every head's output held at its recorded value, the residual at a position depends on that position alone:

    r <- layer_output(r, o),   o recorded, or projected anew where an edit writes z

so a row is computed only at its edited and read tokens, and a layer costs its MLP. Rows with equally many tokens run
together, at whatever positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rebinding.surgery.anatomy import Anatomy
from rebinding.surgery.attention import install
from rebinding.surgery.batch import Batch, Results, fill_unchanged, make_batch
from rebinding.surgery.calling import run_alone
from rebinding.surgery.layers import LayerEdit, LayerRead, split_read
from rebinding.surgery.mean_ablated import ActiveHeads, run_mean_ablated
from rebinding.surgery.memory import budget, in_parts, prompts_that_fit, rows_that_fit
from rebinding.surgery.plan import NEVER, ORDER, Plan, check_changed, make_plan
from rebinding.surgery.recorder import ROWS, record
from rebinding.surgery.recording import RecordedRun, Recordings, site_of_module
from rebinding.surgery.replay import replay, run_layers
from rebinding.surgery.sites import (
    Attention,
    LogitsOf,
    Read,
    Reduce,
    Site,
    SurgeryError,
    check_kept_sites,
    check_tokens,
    reduced_logits,
)
from rebinding.surgery.surgeon import Surgeon

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READABLE: frozenset[Site] = frozenset({"resid", "q", "k", "v", "z", "mlp_out", "logits"})
"""Sites that can be read without running attention."""


def can_run(anatomy: Anatomy, recording: RecordedRun, plan: Plan) -> bool:
    """Whether the parts of this anatomy are known and nothing inside attention is read."""
    is_known = anatomy.branches is not None and all(part.k.end == "output" for part in anatomy.parts)
    is_known = is_known and "attention_output" in recording.sites  # recorded together with z
    return is_known and {read.site for read in plan.reads} <= READABLE


def replay_frozen(model: PreTrainedModel, anatomy: Anatomy, batch: Batch, results: Results) -> None:
    """Compute a batch over its window, with attention as recorded."""
    highest_read = max((read.layer, ORDER[read.site]) for read in batch.plan.reads)

    def run(layer: nn.Module, number: int, hidden: Tensor) -> Tensor:
        _read_projections(layer, anatomy, batch, number, hidden, results)
        if (number, ORDER["q"]) >= highest_read:  # no read is above
            return hidden
        return _layer(layer, anatomy, batch, number, hidden, results)

    run_layers(model, anatomy, batch, results, run)


def _read_projections(
    layer: nn.Module, anatomy: Anatomy, batch: Batch, number: int, hidden: Tensor, results: Results
) -> None:
    sites = {read.site for read in batch.plan.reads if read.layer == number} & {"q", "k", "v"}
    if not sites:
        return
    entry = anatomy.attention_input(layer, hidden)
    for site in sites:
        parts = anatomy.parts[number]
        value = layer.get_submodule(parts.projection(site).module)(entry)
        batch.read(number, site, site_of_module(parts, site, value, hidden.shape[0]), results)


def _layer(layer: nn.Module, anatomy: Anatomy, batch: Batch, number: int, hidden: Tensor, results: Results) -> Tensor:
    output = batch.window(batch.recording.sites["attention_output"][number], 0, hidden.shape[0])
    is_z_read = any(read.layer == number and read.site == "z" for read in batch.plan.reads)
    edits = batch.edits_at(number, "z")
    if edits or is_z_read:
        recorded = batch.window(batch.recording.sites["z"][number].transpose(1, 2), 0, hidden.shape[0])
        z = batch.edit(number, "z", recorded.transpose(1, 2), results)  # (row, head, token, head_dim)
        batch.read(number, "z", z, results)
        if edits:
            rows = torch.cat([placed.at for placed in edits]).unique().to(z.device)
            output = output.clone()
            output[rows] = layer.get_submodule(anatomy.parts[number].output)(z[rows].transpose(1, 2).flatten(2))

    def see(site: Site, value: Tensor) -> Tensor:
        value = batch.edit(number, site, value, results)
        batch.read(number, site, value, results)
        return value

    return anatomy.layer_output(layer, number, hidden, output, partial(see, "mlp_out"), partial(see, "resid_mid"))


ACTIVE_TOKENS = 8
"""Tokens of a mean-ablated run for which memory is planned: those at which a circuit's groups act, and the readout."""


class TorchSurgeon(Surgeon):
    """Carries out edits and reads on a model; see `rebinding.surgery.sites` for the vocabulary.

    `rows` bounds how many rows run at once. By default it follows from free memory, or from `budget`, the bytes that a
    batch may take; a batch that runs out of memory is halved, with the same results. `remember` is how many bytes of
    recordings are cached; with more than 0, the model must not change. `model` may be a function, which is called when
    the first run needs the model.
    """

    def __init__(
        self,
        model: PreTrainedModel | Callable[[], PreTrainedModel],
        anatomy: Anatomy,
        *,
        rows: int | None = None,
        remember: int = 0,
        budget: Callable[[], int] | None = None,
    ) -> None:
        self.anatomy, self.rows, self._budget = anatomy, rows, budget
        self.recordings = Recordings(remember)
        self._prompts_at_once: dict[int, int] = {}
        self._model_or_loader = model
        if isinstance(model, nn.Module):
            _ = self.model  # load now, so that a model that cannot be edited is refused here

    @cached_property
    def model(self) -> PreTrainedModel:
        """The model, with `rebinding.surgery.attention` installed."""
        model: Any = self._model_or_loader if isinstance(self._model_or_loader, nn.Module) else self._model_or_loader()
        install(model)
        return cast("PreTrainedModel", model)

    def room(self) -> int:
        """Bytes that a batch may take now."""
        return budget(self.model) if self._budget is None else self._budget()

    def prompts_at_once(self, length: int) -> int:
        """How many prompts of `length` tokens to record and edit together: what fits when this is first called, so that
        later calls use the same recordings; less when only half of it fits any more."""
        fits = prompts_that_fit(self.model, self.anatomy, length=length, room=self.room())
        if self._prompts_at_once.setdefault(length, fits) > 2 * fits:
            self._prompts_at_once[length] = fits
        return self._prompts_at_once[length]

    def record(self, tokens: Tensor, *, keep: Collection[Site] = ()) -> RecordedRun:
        """Run prompts (prompt, token) unedited; `keep` names sites to record besides those that replays need."""
        check_tokens(self.anatomy, tokens)  # before the cache is used
        check_kept_sites(keep)
        with run_alone(self.model):
            return self.recordings.get(tokens, keep, lambda: self._record(tokens, keep))

    def record_mean_ablated(
        self, tokens: Tensor, fixed_z: Sequence[Tensor], fixed_mlp: Sequence[Tensor] | None = None
    ) -> RecordedRun:
        """Run prompts with every head's output fixed: `fixed_z[layer]` is ([prompt,] head, token, head_dim); with
        `fixed_mlp`, ([prompt,] token, width) by layer, every MLP's as well."""
        keep: set[Site] = {"z"} if fixed_mlp is None else {"z", "mlp_out"}
        with run_alone(self.model):
            return self._record(tokens, keep, fixed_z, fixed_mlp)

    @torch.no_grad()
    def run_mean_ablated(
        self, recording: RecordedRun, active: ActiveHeads, *, source: Tensor, readout: Tensor, reduce: Reduce
    ) -> Tensor:
        """Logits at `readout` (one position a row) of runs in which z is as recorded, except at the active heads.

        `reduce(logits (row, 1, vocabulary), rows)` returns what is kept of them.
        """
        device = recording.sites["resid"][0].device
        parts = []

        def run(rows: Tensor) -> None:
            part = active.of_rows(rows, source.numel())
            resid = run_mean_ablated(self.model, self.anatomy, recording, part, source[rows], readout[rows])
            parts.append(reduced_logits(self.model, self.anatomy, resid[:, None], reduce, rows).to(device))

        size = self._rows_at_once(ACTIVE_TOKENS, recording.length + ACTIVE_TOKENS, 1)
        with run_alone(self.model):
            in_parts(torch.arange(source.numel()), size, run)
        return torch.cat(parts)

    @torch.no_grad()
    def write(self, layer: int, site: Site, output: Tensor) -> Tensor:
        """What z of all heads (row, head, head_dim), or the MLP's output (row, width), adds to the residual stream."""
        if self.anatomy.branches is None:
            raise SurgeryError(
                "this needs layers that add one attention branch and one MLP to one residual stream; this architecture"
                " has others. Leave MLPs unfrozen"
            )
        module = self.anatomy.layer_modules(self.model)[layer]
        if site == "mlp_out":
            return self.anatomy.mlp_write(module, output)
        projection = module.get_submodule(self.anatomy.parts[layer].output)
        return self.anatomy.attention_write(module, projection(output.flatten(1)))

    def with_reads(self, recording: RecordedRun, reads: Sequence[Read]) -> RecordedRun:
        """The recording with some unedited reads added (one line of positions a prompt, one of heads for all).

        Later runs need not compute rows from such a read on if they change only above it.
        """
        parts = [part for read in reads for part in split_read(self.anatomy, read, recording.length)]
        values = self.run_by_layer(recording, [], parts)
        return replace(recording, spots=(*recording.spots, *zip(parts, values, strict=True)))

    @torch.no_grad()
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
        """Replay the rows of a batch from where they first change; see `Surgeon.run`."""
        if attention == "frozen" and not recording.has("z"):
            raise SurgeryError("attention='frozen' needs recorded head outputs: record(tokens, keep={'z'})")
        plan = make_plan(self.anatomy, recording, edits, reads, source, attention, allow_noop=allow_noop)
        results = Results(plan.n_rows, plan.reads)
        fill_unchanged(plan, recording, results)
        is_per_token = attention == "frozen" and can_run(self.anatomy, recording, plan)
        with run_alone(self.model):
            for rows in _groups(plan, per_token=is_per_token):
                self._run_rows(plan, recording, rows, None if is_per_token else attention, results)
        if bool(plan.must_change.any()):
            check_changed(plan.must_change, results.changed_rows())
        return results.ordered()

    def _run_rows(
        self, plan: Plan, recording: RecordedRun, rows: Tensor, attention: Attention | None, results: Results
    ) -> None:
        width = int(plan.last[rows[0]] - plan.first[rows[0]]) + 1
        logits = sum(
            read.positions.shape[1]
            for read in plan.reads
            if read.site == "logits" and not isinstance(read.reduce, LogitsOf)
        )
        size = self._rows_at_once(width, recording.length, logits)
        in_parts(rows, size, lambda part: self._run_batch(make_batch(plan, recording, part), attention, results))

    def _run_batch(self, batch: Batch, attention: Attention | None, results: Results) -> None:
        """`attention` is None where no attention runs and each token is independent."""
        if attention is None:
            replay_frozen(self.model, self.anatomy, batch, results)
        else:
            replay(self.model, self.anatomy, batch, results, attention=attention)

    def _record(
        self,
        tokens: Tensor,
        keep: Collection[Site],
        fixed_z: Sequence[Tensor] | None = None,
        fixed_mlp: Sequence[Tensor] | None = None,
    ) -> RecordedRun:
        rows = max(ROWS, self.prompts_at_once(tokens.shape[1]))
        return record(self.model, self.anatomy, tokens, keep=keep, fixed_z=fixed_z, fixed_mlp=fixed_mlp, rows=rows)

    def _rows_at_once(self, window: int, keys: int, logits: int) -> int:
        if self.rows:
            return self.rows
        return rows_that_fit(self.model, self.anatomy, window=window, keys=keys, logits=logits, room=self.room())


def _groups(plan: Plan, *, per_token: bool) -> Iterator[Tensor]:
    """Groups of rows that need the same tokens, each in the order of start layers, so that windows are short.

    With `per_token`, where tokens are independent, rows of a group need equally many tokens, at any positions.
    """
    running = torch.nonzero((plan.start <= plan.stop) & (plan.start < NEVER)).reshape(-1)
    width = plan.last - plan.first
    windows = torch.stack([width if per_token else plan.first, width], dim=1)[running]  # (row, 2)
    for window in windows.unique(dim=0):
        rows = running[(windows == window).all(dim=1)]
        yield rows[torch.argsort(plan.start[rows], stable=True)]
