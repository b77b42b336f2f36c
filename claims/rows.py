"""How a test says which claims it judges; `rebinding.power.rows` lists them."""

from __future__ import annotations

import pytest

from rebinding.paper.claim import Claim


def judges(*claims: Claim) -> pytest.MarkDecorator:
    """The rows of the list of claims that a test stands for; the test gets them one by one, as `claim`."""
    return pytest.mark.parametrize("claim", claims, ids=[claim.id for claim in claims])
