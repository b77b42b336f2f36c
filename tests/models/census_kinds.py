"""The kind of an anatomy in a few words of the field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rebinding.surgery import Anatomy
from rebinding.surgery.anatomy import LayerParts


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
