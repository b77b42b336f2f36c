"""A surgeon's edits and reads, compared with full forwards of the library."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from rebinding.models.deviation import Deviation
from rebinding.models.reference import Reference
from rebinding.models.replays import NULL_SHIFT, starts
from rebinding.models.rounding import Allowance, size
from rebinding.models.trials import CELLS, Cell, Trial, batches, cells_at, make_trials
from rebinding.surgery import Edit, Read, Surgeon, SurgeryError
from rebinding.surgery.memory import is_out_of_memory
from rebinding.surgery.sites import ATTENTIONS, HEADLESS, Attention, Site

NOISE, STRONG_NOISE = 0.5, 10.0
"""Noise as a share of a site's size. Models that attend to single tokens magnify the rounding of larger noise."""


class Outcome(NamedTuple):
    """One trial: the largest deviation with its token, and the largest effect of the edit."""

    layer: int
    token: int
    deviation: float
    effect: float


@dataclass(eq=False)
class Comparison:
    """A surgeon and its reference, at some layers, and what both gave."""

    surgeon: Surgeon
    reference: Reference
    layers: tuple[int, ...]
    noise: float = NOISE
    outcomes: dict[Cell, list[Outcome]] = field(default_factory=dict)
    refused: dict[tuple[Cell, str], list[int]] = field(default_factory=dict)
    """The layers at which the surgeon refuses a cell, by reason."""
    errors: dict[tuple[Cell, str], list[int]] = field(default_factory=dict)
    """The layers at which the surgeon fails with an error of another kind."""
    reads: dict[Site, float] = field(default_factory=dict)
    """The largest difference of values that a replay without a change reads."""

    def __post_init__(self) -> None:
        self.anatomy, tokens = self.reference.anatomy, self.reference.tokens
        self.length = int(tokens.shape[1])
        self.recording = self.surgeon.record(tokens, keep={"z"})
        allowance = Allowance.of_model(self.reference.model, self.anatomy)
        self.deviation = Deviation.of_resid(allowance, self.reference.resid)

    def run(self, report_progress: Callable[[int, int], None]) -> None:
        """Run the trials batch by batch, then the reads. Sites without a visible effect get stronger noise."""
        groups = [*batches(self.layers), [self.anatomy.n_layers]]
        for number, layers in enumerate(groups):
            report_progress(number, len(groups))
            self._run_layers(layers, CELLS)
        silent = [cell for cell, outcomes in self.outcomes.items() if not any(trial.effect > 1 for trial in outcomes)]
        if silent:
            self.noise = STRONG_NOISE
            for cell in silent:
                del self.outcomes[cell]
            for layers in groups:
                self._run_layers(layers, silent)
        self._compare_reads()
        report_progress(len(groups), len(groups))

    def compare_attention(self) -> float:
        """How far the reference's attention function is from the library's eager attention."""
        clean = self.reference.clean["resid", self.anatomy.n_layers]
        return self.deviation.resids(clean[0], self.reference.resid[0])[1]

    def compare_unedited(self) -> float:
        """How far a replay without a change is from the model's own forward."""
        deviations = []
        for layer, first in starts(self.anatomy.n_layers, self.length):
            edit = Edit("resid", layer, torch.tensor([NULL_SHIFT]), positions=[first], mode="add")
            (actual,) = self.surgeon.run(self.recording, [edit], [self._read_top(first)], allow_noop=True)
            deviations.append(self.deviation.resids(actual[0], self.reference.resid[0, first:])[1])
        return max(deviations)

    def _run_layers(self, layers: Sequence[int], cells: Collection[Cell]) -> None:
        """Run the trials of some cells at some layers, all at one token."""
        dice = torch.Generator().manual_seed(layers[0])
        position = int(torch.randint(1, 3 * self.length // 4, (1,), generator=dice))
        for attention in ATTENTIONS:
            trials = [trial for layer in layers for trial in self._trials(layer, attention, cells, position)]
            self._run_logits([trial for trial in trials if trial.site == "logits"])
            self._run_batch([trial for trial in trials if trial.site != "logits"])

    def _trials(self, layer: int, attention: Attention, cells: Collection[Cell], position: int) -> list[Trial]:
        chosen = [cell for cell in cells_at(self.anatomy, layer, attention) if cell in cells]
        return make_trials(self.anatomy, chosen, layer, position, self.length, self._size)

    def _size(self, site: Site, layer: int) -> Tensor | float:
        """The size of the noise at a site, times `noise`: the root mean square of patterns in the unedited run; 1 at
        scores and logits; one plus the root mean square at other sites of heads; at sites without heads that of every
        dimension (hidden,), as a few may be much larger."""
        if site in ("scores", "logits"):
            return self.noise
        value = self._clean(site, layer)
        if site not in HEADLESS:
            return self.noise * (size(value) + (site != "pattern"))
        dimensions = value.float().square().mean(dim=(0, 1)).sqrt()  # (hidden,)
        return self.noise * dimensions.cpu() if bool(dimensions.any()) else self.noise

    def _clean(self, site: Site, layer: int) -> Tensor:
        """A site of the unedited run; raw keys and values are those of the layer that computes them."""
        layer = self.anatomy.parts[layer].key_layer if site in ("k", "v") else layer
        return self.reference.clean[site, layer]

    def _run_batch(self, trials: Sequence[Trial]) -> None:
        if not trials:
            return
        try:
            replays = self._replay(trials)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._run_accepted(trials, error)
            return
        begin = trials[0].position
        expected = self.reference.run(trials)[:, begin:]  # (trial, token, hidden)
        for row, trial in enumerate(trials):
            effect = self.deviation.resids(expected[row], self.reference.resid[0, begin:])[1]
            for actual in replays:
                token, deviation = self.deviation.resids(actual[row], expected[row])
                self._keep(trial, Outcome(trial.layer, begin + token, deviation, effect))

    def _replay(self, trials: Sequence[Trial]) -> list[Tensor]:
        """The surgeon's residuals (trial, token, hidden) after the last layer, from the edited token on.

        With attention frozen there are two ways, with and without attention; a read of a pattern requires the second.
        """
        read = self._read_top(trials[0].position)
        replays = [self._make_edits(trials, [read])]
        if trials[0].attention == "frozen" and self.anatomy.branches is not None:
            layer, head = self.anatomy.heads[-1]
            inside = Read("pattern", layer, positions=[self.length - 1], heads=[head])
            replays.append(self._make_edits(trials, [read, inside]))
        return replays

    def _make_edits(self, trials: Sequence[Trial], reads: Sequence[Read]) -> Tensor:
        """The first read of a batch with one row for each trial."""
        edits = [trial.edit(row) for row, trial in enumerate(trials)]
        source, attention = torch.zeros(len(trials), dtype=torch.long), trials[0].attention
        return self.surgeon.run(self.recording, edits, reads, source=source, attention=attention, allow_noop=True)[0]

    def _read_top(self, begin: int) -> Read:
        return Read("resid", self.anatomy.n_layers, positions=range(begin, self.length))

    def _run_accepted(self, trials: Sequence[Trial], error: Exception) -> None:
        """Run the trials of a batch that failed: together those that work alone; each alone if all do."""
        if len(trials) == 1:
            self._keep_error(trials[0].cell, trials[0].layer, error)
            return
        accepted = [trial for trial in trials if self._is_accepted(trial)]
        for batch in [accepted] if len(accepted) < len(trials) else [[trial] for trial in trials]:
            self._run_batch(batch)

    def _is_accepted(self, trial: Trial) -> bool:
        """Whether the surgeon makes an edit; an error is kept. One layer is run."""
        layer = min(trial.layer + 1, self.anatomy.n_layers)
        try:
            self._make_edits([trial], [Read("resid", layer, positions=range(trial.position, self.length))])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._keep_error(trial.cell, trial.layer, error)
            return False
        return True

    def _keep(self, trial: Trial, outcome: Outcome) -> None:
        self.outcomes.setdefault(trial.cell, []).append(outcome)

    def _keep_error(self, cell: Cell, layer: int, error: Exception) -> None:
        """Note that the surgeon refuses a cell, or fails at it."""
        if isinstance(error, SurgeryError):
            self.refused.setdefault((cell, str(error)), []).append(layer)
        else:
            self.errors.setdefault((cell, f"{type(error).__name__}: {error!s:.200}"), []).append(layer)

    def _run_logits(self, trials: Sequence[Trial]) -> None:
        for trial in trials:
            begin = trial.position
            try:
                actual = self._make_edits([trial], [Read("logits", positions=range(begin, self.length))])[0]
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self._keep_error(trial.cell, trial.layer, error)
                continue
            expected, clean = (self.reference.logits(noise)[0, begin:] for noise in (trial, None))
            token, deviation = self.deviation.values(actual, expected)
            effect = self.deviation.values(expected, clean)[1]
            self._keep(trial, Outcome(trial.layer, begin + token, deviation, effect))

    def _compare_reads(self) -> None:
        """Read every site of every layer in a replay without a change."""
        begin = self.length // 3
        lacking = {(cell, layer) for (cell, _), layers in (self.refused | self.errors).items() for layer in layers}
        places = [
            (cell.site, layer)
            for layer in (*self.layers, self.anatomy.n_layers)
            for cell in cells_at(self.anatomy, layer, "live")
            if cell.scope != "head" and cell.site != "logits" and (cell, layer) not in lacking
        ]
        for (site, layer), actual in zip(places, self._read_all(places, begin), strict=True):
            if actual is None:
                continue
            expected = self._clean(site, layer)[0, ..., begin:, :]
            compare = self.deviation.scores if site == "scores" else self.deviation.values
            self.reads[site] = max(self.reads.get(site, 0.0), compare(actual[0], expected)[1])

    def _read_all(self, places: Sequence[tuple[Site, int]], begin: int) -> list[Tensor | None]:
        """The values of sites in a replay without a change; None where a read fails, which is kept as an error."""
        edit = Edit("resid", 0, torch.tensor([NULL_SHIFT]), positions=[begin], mode="add")
        reads = [self._read(site, layer, begin) for site, layer in places]
        try:
            return [*self.surgeon.run(self.recording, [edit], reads, allow_noop=True)]
        except Exception as error:
            if is_out_of_memory(error):
                raise
            if len(places) > 1:
                return [value for place in places for value in self._read_all([place], begin)]
            site, layer = places[0]
            self._keep_error(Cell(site, "group") if site in ("k", "v") else Cell(site), layer, error)
            return [None]

    def _read(self, site: Site, layer: int, begin: int) -> Read:
        parts = self.anatomy.parts[min(layer, self.anatomy.n_layers - 1)]
        heads = None if site in HEADLESS else range(parts.n_kv_heads if site in ("k", "v") else parts.n_heads)
        return Read(site, layer, positions=range(begin, self.length), heads=heads)
