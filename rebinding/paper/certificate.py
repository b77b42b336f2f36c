"""A certificate: how far edits of a model are from full forwards of the library; its text and its file.

Deviations, effects and reads are in units of the allowance, the most that float32 rounding may do
(`rebinding.models.probe`). `rebinding.models.certificate` makes certificates.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from platform import python_version
from typing import Any, Literal

SCHEMA = 1
LIBRARIES = ("rebinding", "torch", "transformers", "nnsight")
LARGEST = 1e9
"""Deviations and effects are at most this, also where a value is infinite or NaN."""
ADVICE = "do not rely on such edits of this model, and report the versions and its config.json"


class CertificateError(ValueError):
    """A file is no certificate."""


@dataclass(frozen=True)
class SiteResult:
    """The trials of one site, one for each layer.

    `deviation` is the largest difference from the reference, at `layer` and `token`; `effect` the largest change that
    an edit makes; `read` the largest difference of values that are read. At `silent` layers the edit changes the output
    by less than the allowance, so these trials show nothing.
    """

    site: str
    layers: tuple[int, ...]
    silent: tuple[int, ...]
    deviation: float
    layer: int
    token: int
    effect: float
    read: float | None


@dataclass(frozen=True)
class Gap:
    """Something that does not work on a model at some layers (all, if none are listed), and why."""

    what: str
    layers: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        return f"{self.what}{f' at {name_layers(self.layers)}' if self.layers else ''}: {self.reason}"


@dataclass(frozen=True)
class Certificate:
    """How far the edits of a model are from full forwards of the library.

    `replay` compares a replay without a change with the model's own forward, `attention` the attention function of the
    reference with the library's eager attention. `gaps` are refused edits, `errors` those that fail in another way.
    """

    architecture: str
    anatomy: dict[str, int | str | list[int]]
    versions: dict[str, str]
    dtype: str
    device: str
    tokens: int
    layers: tuple[int, ...]
    sites: tuple[SiteResult, ...]
    replay: float
    attention: float
    gaps: tuple[Gap, ...]
    errors: tuple[Gap, ...]
    model: str | None = None
    fingerprint: str | None = None
    schema: Literal[1] = 1

    @property
    def deviation(self) -> float:
        """The largest deviation of all checks."""
        reads = [result.read for result in self.sites if result.read is not None]
        return max([self.replay, self.attention, *reads, *(result.deviation for result in self.sites)])

    @property
    def n_sites(self) -> int:
        """The number of sites; the scopes of an edit, and frozen attention, do not count again."""
        return len({result.site.split()[0] for result in self.sites})

    @property
    def failures(self) -> list[str]:
        """A sentence for everything that is wrong."""
        return list(_failures(self))

    @property
    def is_passed(self) -> bool:
        """Whether every deviation is within the allowance, and some edit of every site has an effect."""
        return not self.failures

    @property
    def sentence(self) -> str:
        """The certificate in one line."""
        where = "" if len(self.layers) == self.anatomy["layers"] else f" at {name_layers(self.layers)}"
        if not self.is_passed:
            return f"Not certified{where}: {self.failures[0]}"
        return (
            f"Certified{where}: {self.n_sites} sites, largest deviation {self.deviation:.2g} of the allowance, "
            f"transformers {self.versions['transformers']}"
        )

    def lines(self) -> Iterator[str]:
        """The certificate as text."""
        identity = "" if self.fingerprint is None else f", fingerprint {self.fingerprint[:12]}"
        yield f"{self.model or 'a model'}: {self.architecture}{identity}"
        yield ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in self.anatomy.items())
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        yield f"{self.dtype} on {self.device}, {self.tokens} tokens, {versions}"
        yield "\nunits of the allowance; more than 1 is an error"
        yield f"{'site':<18}{'layers':<14}{'deviation':>10}  {'at':<20}{'effect':>10}{'read':>10}"
        for result in self.sites:
            place = f"layer {result.layer} token {result.token}"
            read = "" if result.read is None else f"{result.read:.4f}"
            yield (
                f"{result.site:<18}{name_layers(result.layers).partition(' ')[2]:<14}{result.deviation:>10.4f}  "
                f"{place:<20}{result.effect:>10.3g}{read:>10}".rstrip()
            )
        yield f"{'replay without a change':<30}{self.replay:>10.4f}"
        yield f"{'attention of the reference':<30}{self.attention:>10.4f}\n"
        yield from (f"not supported: {gap}" for gap in self.gaps)
        silent = [f"{result.site} at {name_layers(result.silent)}" for result in self.sites if result.silent]
        yield from [f"no visible effect: {', '.join(silent)}"] if silent else []
        yield from (f"wrong: {failure}" for failure in self.failures)
        yield self.sentence if self.is_passed else "Not certified"


def _failures(certificate: Certificate) -> Iterator[str]:
    """What is wrong, and what to do."""
    if not certificate.attention <= 1:
        yield (
            f"the attention of the reference is off by {certificate.attention:.3g} allowances from the library's eager "
            "attention, so it certifies nothing; add to rebinding/models/reference.py what this model does"
        )
    if not certificate.replay <= 1:
        off = f"{certificate.replay:.3g} allowances"
        yield f"a replay without a change is off by {off} from the model's own forward; {ADVICE}"
    for error in certificate.errors:
        yield f"{error.what}: the edit at {name_layers(error.layers)} fails ({error.reason}); {ADVICE}"
    for result in certificate.sites:
        if not result.deviation <= 1:
            yield (
                f"{result.site}: the edit at layer {result.layer} is off by {result.deviation:.3g} allowances at token "
                f"{result.token} from a full forward; {ADVICE}"
            )
        if not result.effect > 1:
            yield (
                f"{result.site}: no edit at {name_layers(result.layers)} changes the output, so nothing is shown; "
                "certify more layers, and check that these parts of the model are connected"
            )
        if result.read is not None and not result.read <= 1:
            yield f"{result.site}: the values that are read are off by {result.read:.3g} allowances; {ADVICE}"


def name_layers(layers: Sequence[int]) -> str:
    """'layer 3', or 'layers 0-3, 7'."""
    runs = [[number for _, number in run] for _, run in groupby(enumerate(layers), lambda item: item[1] - item[0])]
    names = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"layer{'' if len(layers) == 1 else 's'} {', '.join(names)}"


def _short(value: int | str | list[int]) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def installed_versions() -> dict[str, str]:
    """Python, and the packages on which a certificate depends."""
    return {"python": python_version(), **{name: version(name) for name in LIBRARIES}}


def to_json(certificate: Certificate) -> str:
    """A certificate as JSON (`schemas/certificate.json`)."""
    return json.dumps(asdict(certificate), indent=1, allow_nan=False) + "\n"


def load(path: Path) -> Certificate:
    """Read a certificate; raise a CertificateError for any other file."""
    from pydantic import TypeAdapter, ValidationError  # only if a file is read

    try:
        return TypeAdapter(Certificate).validate_json(path.read_bytes(), strict=True)
    except (OSError, ValidationError) as error:
        first = str(error).replace("\n", " ")
        raise CertificateError(f"{path} is no certificate ({first:.300}); run `rebinding certify` again") from None


def summarise(certificate: Certificate) -> Mapping[str, Any]:
    """What a report says of a certificate."""
    return {
        "is_passed": certificate.is_passed,
        "sites": certificate.n_sites,
        "layers": len(certificate.layers),
        "deviation": certificate.deviation,
        "not_supported": [str(gap) for gap in certificate.gaps],
        "device": certificate.device,
        "versions": dict(certificate.versions),
    }
