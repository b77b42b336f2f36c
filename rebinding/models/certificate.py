"""Certify a model: edit every site at every layer, and compare the surgeon with full forwards of the library.

Each trial adds noise to one site of one layer, at half of the heads and one token of a random prompt. The surgeon
replays it. The reference (`rebinding.models.reference`) computes it without recording, prefix or replay. Their
residuals after the last layer are compared at every token from the edit on. The deviation is counted in allowances
for float32 rounding (`rebinding.models.probe`); models of 16 bits compute in float32 meanwhile. A trained model has
dimensions of the residual that are a thousand times larger than others and would hide any change, so every dimension is
divided by its size first.

A layer costs 18 forwards of the prompt by the reference and 19 replays by the surgeon.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypedDict

import torch
from torch import Tensor

from rebinding.models.probe import Allowance, draw_tokens, in_float32, size
from rebinding.models.reference import CELLS, Cell, Reference, Trial, batches, cells_at, make_trials, missing_part
from rebinding.models.replays import NULL_SHIFT, replay_from, starts
from rebinding.paper.certificate import LARGEST, Certificate, Gap, SiteResult, installed_versions
from rebinding.surgery import Anatomy, Edit, Read, Surgeon, SurgeryError, TorchSurgeon, in_layer
from rebinding.surgery.memory import is_out_of_memory
from rebinding.surgery.sites import ATTENTIONS, HEADLESS, Attention, Site

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FLOOR = 1e-3
"""Dimensions of the residual count as at least this share of their root mean square."""
MASKED = torch.finfo(torch.float16).min
"""Scores below this are masked."""
NOISE, STRONG_NOISE = 0.5, 10.0
"""Noise as a share of a site's size. Models that attend to single tokens magnify the rounding of larger noise."""


@dataclass(frozen=True, eq=False)
class Deviation:
    """The allowance of a model, and the size of every dimension of its residual (hidden,)."""

    allowance: Allowance
    scale: Tensor

    @classmethod
    def of_resid(cls, allowance: Allowance, resid: Tensor) -> Deviation:
        """Sizes as in an unedited residual (row, token, hidden)."""
        resid = resid.float()
        dimensions = resid.square().mean(dim=(0, 1)).sqrt()  # (hidden,)
        return cls(allowance, dimensions.clamp(min=FLOOR * size(resid)))

    def resids(self, actual: Tensor, expected: Tensor) -> tuple[int, float]:
        """The token at which two residuals (token, hidden) differ most, and the difference in allowances."""
        actual, expected = (value.to(self.scale.device).float() / self.scale for value in (actual, expected))
        return self.values(actual, expected)

    def values(self, actual: Tensor, expected: Tensor) -> tuple[int, float]:
        """The same for values ([head,] token, width) of any site."""
        expected = expected.float()
        off, typical = (
            value.square().movedim(-2, 0).flatten(1).mean(dim=1).sqrt()  # (token,)
            for value in (actual.to(expected) - expected, expected)
        )
        allowed = (self.allowance.relative * typical).clamp(min=torch.finfo(torch.float32).tiny)
        ratio = (off / allowed).nan_to_num(nan=LARGEST).clamp(max=LARGEST)  # (token,)
        return int(ratio.argmax()), float(ratio.max())

    def scores(self, actual: Tensor, expected: Tensor) -> tuple[int, float]:
        """The same for scores (head, query, key): masked ones do not count, but have to be masked in both."""
        actual = actual.to(expected)
        is_masked = expected < MASKED
        is_wrong = (actual < MASKED) != is_masked
        actual = actual.masked_fill(is_masked, 0.0).masked_fill(is_wrong, torch.inf)
        return self.values(actual, expected.masked_fill(is_masked, 0.0))


class CertificateOutcome(NamedTuple):
    """One trial: the largest deviation with its token, and the largest effect of the edit."""

    layer: int
    token: int
    deviation: float
    effect: float


@dataclass(eq=False)
class ForwardComparison:
    """A surgeon and its reference, at some layers, and what both gave."""

    surgeon: Surgeon
    reference: Reference
    layers: tuple[int, ...]
    noise: float = NOISE
    outcomes: dict[Cell, list[CertificateOutcome]] = field(default_factory=dict)
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
            actual = replay_from(self.surgeon, self.recording, layer, first)
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
                self._keep(trial, CertificateOutcome(trial.layer, begin + token, deviation, effect))

    def _replay(self, trials: Sequence[Trial]) -> list[Tensor]:
        """The surgeon's residuals (trial, token, hidden) after the last layer, from the edited token on.

        With attention frozen there are two ways, with and without attention; a read of a pattern requires the second.
        """
        read = self._read_top(trials[0].position)
        replays = [self._make_edits(trials, [read])]
        if trials[0].attention == "frozen" and self.anatomy.branches is not None:
            layer, head = self.anatomy.heads[-1]
            inside = Read("pattern", at=[self.length - 1], head=[(layer, head)])
            replays.append(self._make_edits(trials, [read, inside]))
        return replays

    def _make_edits(self, trials: Sequence[Trial], reads: Sequence[Read]) -> Tensor:
        """The first read of a batch with one row for each trial."""
        edits = [trial.edit(row) for row, trial in enumerate(trials)]
        source, attention = torch.zeros(len(trials), dtype=torch.long), trials[0].attention
        return self.surgeon.run(self.recording, edits, reads, source=source, attention=attention, allow_noop=True)[0]

    def _read_top(self, begin: int) -> Read:
        return Read("resid", range(begin, self.length), layer=self.anatomy.n_layers)

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
            self._make_edits([trial], [Read("resid", at=range(trial.position, self.length), layer=layer)])
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._keep_error(trial.cell, trial.layer, error)
            return False
        return True

    def _keep(self, trial: Trial, outcome: CertificateOutcome) -> None:
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
                actual = self._make_edits([trial], [Read("logits", at=range(begin, self.length))])[0]
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self._keep_error(trial.cell, trial.layer, error)
                continue
            expected, clean = (self.reference.logits(noise)[0, begin:] for noise in (trial, None))
            token, deviation = self.deviation.values(actual, expected)
            effect = self.deviation.values(expected, clean)[1]
            self._keep(trial, CertificateOutcome(trial.layer, begin + token, deviation, effect))

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
        edit = Edit("resid", torch.tensor([NULL_SHIFT]), at=[begin], layer=0, mode="add")
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
        tokens = range(begin, self.length)
        if site in HEADLESS:
            return Read(site, tokens, layer=layer)
        if site in ("k", "v"):
            return Read(site, tokens, in_layer(layer, range(parts.n_kv_heads)), scope="group")
        return Read(site, tokens, in_layer(layer, range(parts.n_heads)))


class CertifyOptions(TypedDict, total=False):
    """What is certified: a surgeon (a `TorchSurgeon` by default), at `layers` or at all.

    `report_progress` gets the numbers of finished and of all batches. With `has_nnsight` the first of these layers is
    also checked with the `NNsightSurgeon`.
    """

    surgeon: Surgeon
    layers: Sequence[int] | None
    has_nnsight: bool
    report_progress: Callable[[int, int], None]


def certify(model: PreTrainedModel, anatomy: Anatomy, options: CertifyOptions) -> Certificate:
    """The certificate of a model with a verified anatomy."""
    tokens, layers = draw_tokens(model, anatomy), options.get("layers")
    chosen = tuple(range(anatomy.n_layers)) if layers is None else tuple(sorted(set(layers)))
    with in_float32(model, anatomy, has_parts=True):
        reference = Reference(model, anatomy, tokens)
        comparison = ForwardComparison(options.get("surgeon") or TorchSurgeon(model, anatomy), reference, chosen)
        comparison.run(options.get("report_progress", _report_nothing))
        nnsight = _check_nnsight(reference, chosen[:1]) if options.get("has_nnsight") else ((), ())
        return Certificate(
            architecture=type(model).__name__,
            anatomy=describe(anatomy),
            versions=installed_versions(),
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(model.device),
            tokens=tokens.shape[1],
            layers=chosen,
            sites=tuple(_results(comparison)),
            replay=comparison.compare_unedited(),
            attention=comparison.compare_attention(),
            gaps=(*_gaps(comparison), *nnsight[0]),
            errors=(*_as_gaps(comparison.errors), *nnsight[1]),
        )


def _report_nothing(done: int, total: int) -> None:
    """The progress of a run that nobody watches."""


def _results(comparison: ForwardComparison) -> Iterator[SiteResult]:
    for cell in CELLS:
        outcomes = comparison.outcomes.get(cell)
        if not outcomes:
            continue
        worst = max(outcomes, key=lambda outcome: outcome.deviation)
        yield SiteResult(
            site=str(cell),
            layers=tuple(sorted({outcome.layer for outcome in outcomes})),
            silent=tuple(sorted({outcome.layer for outcome in outcomes if not outcome.effect > 1})),
            deviation=worst.deviation,
            layer=worst.layer,
            token=worst.token,
            effect=max(outcome.effect for outcome in outcomes),
            read=comparison.reads.get(cell.site) if cell.attention == "live" and cell.scope != "head" else None,
        )


def _gaps(comparison: ForwardComparison) -> Iterator[Gap]:
    missing: dict[tuple[Cell, str], list[int]] = {}
    for cell in CELLS:
        for layer in comparison.layers:
            reason = missing_part(comparison.anatomy, cell, layer)
            if reason is not None:
                missing.setdefault((cell, reason), []).append(layer)
    yield from _as_gaps(missing | comparison.refused)
    if comparison.anatomy.branches is None:
        yield Gap("fast frozen path", (), "the norms of the layers are unknown, so frozen replays run whole layers")


def _as_gaps(layers_by_reason: Mapping[tuple[Cell, str], list[int]]) -> Iterator[Gap]:
    """One gap for all cells that have the same reason at the same layers."""
    cells: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (cell, reason), layers in layers_by_reason.items():
        cells.setdefault((reason, tuple(sorted(layers))), []).append(str(cell))
    for (reason, numbers), names in cells.items():
        yield Gap(", ".join(names), numbers, reason)


def _check_nnsight(reference: Reference, layers: tuple[int, ...]) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
    """What the `NNsightSurgeon` does not support on a model, and where it is wrong."""
    from rebinding.surgery.nnsight_surgeon import NNsightSurgeon  # takes seconds

    comparison = ForwardComparison(NNsightSurgeon(reference.model, reference.anatomy), reference, layers)
    comparison.run(_report_nothing)
    cells: dict[str, list[str]] = {}
    for cell, reason in [*comparison.refused, *comparison.errors]:
        cells.setdefault(reason, []).append(str(cell))
    gaps = tuple(Gap(f"nnsight, {', '.join(names)}", (), reason) for reason, names in cells.items())
    wrong = (result for result in _results(comparison) if not max(result.deviation, result.read or 0.0) <= 1)
    return gaps, tuple(
        Gap(f"nnsight, {result.site}", result.layers, f"a deviation of {result.deviation:.3g} allowances")
        for result in wrong
    )


def describe(anatomy: Anatomy) -> dict[str, int | str | list[int]]:
    """The anatomy in short; sizes that differ between layers are listed."""
    return {
        "layers": anatomy.n_layers,
        **{name: sorted({getattr(part, f"n_{name}") for part in anatomy.parts}) for name in ("heads", "kv_heads")},
        "head_size": sorted({part.head_dim for part in anatomy.parts}),
        "hidden_size": anatomy.hidden,
    }
