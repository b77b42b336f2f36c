"""What the self-check says about every type of the census, and the table in which this is kept."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from rebinding.models import ModelError
from rebinding.models.selfcheck import check
from rebinding.surgery import Anatomy
from rebinding.surgery.anatomy import LayerParts
from tests.models.census import CannotBuild, build


@dataclass(frozen=True)
class Feature:
    """A feature of an anatomy: its name, what it means, and whether an anatomy has it."""

    name: str
    meaning: str
    is_in: Callable[[Anatomy], bool]


def _in_some_layer(has_feature: Callable[[LayerParts], object]) -> Callable[[Anatomy], bool]:
    return lambda anatomy: any(has_feature(part) for part in anatomy.parts)


def _norms(*, before: bool, after: bool) -> Callable[[Anatomy], bool]:
    def is_in(anatomy: Anatomy) -> bool:
        branches = anatomy.branches
        return branches is not None and (bool(branches.mlp_before), bool(branches.mlp_after)) == (before, after)

    return is_in


FEATURES = (
    Feature("pre-norm", "each branch reads the residual stream through a norm", _norms(before=True, after=False)),
    Feature("post-norm", "each branch writes through a norm", _norms(before=False, after=True)),
    Feature("sandwich norm", "each branch reads and writes through a norm", _norms(before=True, after=True)),
    Feature(
        "parallel branches",
        "attention and MLP read the same residual",
        lambda anatomy: anatomy.branches is not None and anatomy.branches.is_parallel,
    ),
    Feature(
        "residual factor",
        "branches are multiplied by a constant",
        lambda anatomy: anatomy.branches is not None and anatomy.branches.factor != 1.0,
    ),
    Feature(
        "fused q, k, v",
        "one projection computes queries, keys and values",
        _in_some_layer(lambda part: part.has_own_keys and part.q.module == part.k.module),
    ),
    Feature("query-key norm", "queries and keys pass a norm", _in_some_layer(lambda part: part.q_norm)),
    Feature("value norm", "values pass a norm", _in_some_layer(lambda part: part.v_norm)),
    Feature(
        "windows", "some layers see only the last tokens", _in_some_layer(lambda part: part.mask.kind == "sliding")
    ),
    Feature(
        "chunks", "some layers see only tokens of one chunk", _in_some_layer(lambda part: part.mask.kind == "chunked")
    ),
    Feature("sinks", "the softmax has one more, learned, score", _in_some_layer(lambda part: part.has_sinks)),
    Feature("gates", "a gate multiplies the output of each head", _in_some_layer(lambda part: part.has_gate)),
    Feature(
        "shared keys",
        "some layers attend to keys and values of an earlier one; an edit of `k` or `v` changes their copies",
        lambda anatomy: anatomy.shares_keys,
    ),
    Feature(
        "head sizes",
        "the size of a head differs from layer to layer",
        lambda anatomy: len({part.head_dim for part in anatomy.parts if part.n_heads}) > 1,
    ),
    Feature(
        "state layers",
        "some layers have no heads and carry a state from token to token; replays run them from the first token",
        lambda anatomy: anatomy.has_mixers,
    ),
    Feature("streams", "the residual stream has parallel streams, side by side", lambda anatomy: anatomy.streams > 1),
    Feature(
        "soft cap",
        "tanh bounds attention scores or logits",
        lambda anatomy: bool(anatomy.score_softcap or anatomy.logit_softcap),
    ),
    Feature("logit factor", "logits are multiplied by a constant", lambda anatomy: anatomy.logit_factor != 1.0),
    Feature(
        "no fast frozen path",
        "path patching with frozen attention runs whole layers",
        lambda anatomy: anatomy.branches is None,
    ),
)


def describe(anatomy: Anatomy) -> str:
    """The features of an anatomy, separated by semicolons; the same text for anatomies of one kind."""
    return "; ".join(feature.name for feature in FEATURES if feature.is_in(anatomy))


TABLE = Path(__file__).with_suffix("").with_name("census.toml")
COMMAND = "python -m tests.models.census_page"
HEAD = f"# What the self-check says about every type of transformers. `{COMMAND}` writes it.\n"


@dataclass(frozen=True)
class Outcome:
    """A type is accepted, with the kind of its anatomy, or refused, or not built, with a reason."""

    status: Literal["accepted", "refused", "not built"]
    kind: str = ""
    error: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.status, self.kind, self.error, self.reason]))


@dataclass(frozen=True)
class CertificateSummary:
    """What the certificate of an accepted type says: the largest deviation in allowances, what is not supported, and
    what fails."""

    deviation: float = field(compare=False)
    gaps: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """The outcome of every type, the certificates of those that are accepted, and the versions of the census."""

    outcomes: dict[str, Outcome]
    certificates: dict[str, CertificateSummary]
    versions: dict[str, str] = field(
        default_factory=lambda: {name: version(name) for name in ("torch", "transformers")}
    )

    def updated(self, new: Table) -> Table:
        """This table with the types of another one in place of its own."""
        outcomes = dict(sorted((self.outcomes | new.outcomes).items()))
        kept = {kind: entry for kind, entry in self.certificates.items() if kind not in new.outcomes}
        return Table(outcomes, dict(sorted((kept | new.certificates).items())), new.versions)


def run_census(kinds: Iterable[str]) -> Table:
    """Examine types, and certify those that are accepted."""
    outcomes = {kind: examine(kind) for kind in kinds}
    accepted = [kind for kind, outcome in outcomes.items() if outcome.status == "accepted"]
    return Table(outcomes, {kind: summarise_certificate(kind) for kind in accepted})


def summarise_certificate(kind: str) -> CertificateSummary:
    """Certify a type that is accepted."""
    model = build(kind)
    certificate = check(model, "certify")
    missing = "the layer "  # begins the reason where single layers lack a site, which the kind says
    gaps = dict.fromkeys(gap.what for gap in certificate.gaps if not gap.reason.startswith(missing))
    return CertificateSummary(float(f"{certificate.deviation:.2g}"), tuple(gaps), tuple(certificate.failures))


def examine(kind: str) -> Outcome:
    """Build a type's small model and check it."""
    try:
        model = build(kind)
    except CannotBuild as error:
        return Outcome("not built", reason=str(error).split(". ")[0])
    try:
        return Outcome("accepted", kind=describe(check(model)))
    except ModelError as error:
        return Outcome("refused", error=type(error).__name__, reason=shorten(str(error), type(model).__name__))


def shorten(message: str, name: str) -> str:
    """The first clause of a message, without the name of the model in front."""
    clause = re.split(r"[.;] |: (?![^(]*\))", message.removeprefix(name).lstrip(": "))[0].removesuffix(".")
    return clause + ")" * (clause.count("(") - clause.count(")"))


def read_table() -> Table:
    """The table as it was committed."""
    data = tomllib.loads(TABLE.read_text("utf-8"))
    certificates = {kind: _read_certificate(entry) for kind, entry in data["certificates"].items()}
    return Table({kind: Outcome(**entry) for kind, entry in data["types"].items()}, certificates, data["versions"])


def _read_certificate(entry: dict[str, Any]) -> CertificateSummary:
    return CertificateSummary(entry["deviation"], tuple(entry.get("gaps", ())), tuple(entry.get("failures", ())))


def write_table(table: Table) -> None:
    """One line a type."""
    lines = [HEAD, "[versions]", *(f"{name} = {json.dumps(number)}" for name, number in table.versions.items())]
    for title, entries in (("types", table.outcomes), ("certificates", table.certificates)):
        lines += [f"\n[{title}]", *(f"{kind} = {_inline(asdict(entry))}" for kind, entry in entries.items())]
    TABLE.write_text("\n".join(lines) + "\n", "utf-8")


def _inline(entry: dict[str, Any]) -> str:
    fields = (f"{name} = {json.dumps(value)}" for name, value in entry.items() if value not in ("", ()))
    return f"{{ {', '.join(fields)} }}"
