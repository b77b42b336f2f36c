"""Every architecture that transformers offers as a causal language model is loaded or refused by an error of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from rebinding.models import ModelError, load
from rebinding.models.selfcheck import check_model
from tests.models.census import TYPES, build
from tests.models.folders import save

ONCE_FOREIGN = ("doge",)
"""It ended in an error of torch."""
BUILT = 140
"""Of 189 types of transformers 5.23, at least; the others cannot be made small by sizes that several types share."""


@pytest.mark.parametrize("kind", ONCE_FOREIGN)
def test_loading_ends_in_an_error_of_ours(kind: str, tmp_path: Path) -> None:
    """It says what to do next, and is the same whether a folder is loaded or a model is checked."""
    model = build(kind)
    assert model is not None
    save(model, tmp_path / kind)
    with pytest.raises(ModelError, match=r"rebinding/surgery/\w+\.py") as refusal:
        load(str(tmp_path / kind))
    with pytest.raises(type(refusal.value), match=r"rebinding/surgery/\w+\.py"):
        check_model(model)


@pytest.mark.slow
def test_every_type_is_accepted_or_refused() -> None:
    """Run with `-s` for the list."""
    outcomes: dict[str, str] = {}
    for kind in TYPES:
        model = build(kind)
        if model is None:
            continue
        try:
            outcomes[kind] = f"accepted, {check_model(model).branches}"
        except ModelError as error:
            outcomes[kind] = f"refused, {type(error).__name__}: {error}"
    print("\n" + "\n".join(f"{kind:24} {outcome:.150}" for kind, outcome in outcomes.items()))
    assert len(outcomes) >= BUILT
    assert sum(outcome.startswith("accepted") for outcome in outcomes.values()) > 50
    assert all(kind in outcomes for kind in ONCE_FOREIGN)
