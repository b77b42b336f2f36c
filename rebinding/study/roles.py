"""The attention interchange of section 4.2."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rebinding.evidence import Evidence
from rebinding.experiments.roles.interchange import MODES, Mode, RolePair, run_roles
from rebinding.paper.circuit import Circuit
from rebinding.study.bench import EVALUATION, Bench
from rebinding.world.designs import DesignName

PairKind: TypeAlias = Literal["pointer", "content_control"]


def interchanged(
    bench: Bench, circuit: Circuit, name: DesignName, kind: PairKind, *, n: int, mode: Mode = "paper"
) -> Evidence:
    """Every group of a circuit gets the attention of a counterfactual."""
    groups = {group: circuit.group(group) for group in MODES[mode] if circuit.group(group)}
    settings = {"design": name, "kind": kind, "n": n, "mode": mode, "groups": {k: list(v) for k, v in groups.items()}}

    def compute() -> Evidence:
        drawn = bench.design(name)
        found = [getattr(drawn, kind)(number) for number in range(EVALUATION, EVALUATION + n)]
        sides = [bench.encoder.encode(getattr(pair, side) for pair in found) for side in ("original", "counterfactual")]
        pairs = [RolePair(pair.id, own, other) for pair, own, other in zip(found, *sides, strict=True)]
        token = bench.encoder.answer_token
        return run_roles(bench.surgeon, pairs, groups, kind=kind, token=token, mode=mode, single_heads=False)

    return bench.kept("roles", __name__, settings, compute)
