"""Later prompts leave out senders that did nothing on the first ones, and no others."""

from __future__ import annotations

import pandas as pd

from rebinding.experiments.search.request import SearchSettings
from rebinding.experiments.search.search import EDGE_SHARE, MeasuredSteps, Search
from rebinding.experiments.search.summary import family
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.prompts import Encoder
from tests.experiments.search.setup import noise_pairs
from tests.planted.runs import plant

SHARE = 0.0005
"""So little that decoys are run on the first block, too."""
KEY = ["component", "layer", "head", "family"]


def sum_by_sender(rows: pd.DataFrame, prompts: int) -> pd.Series:
    """The effect of each head at the places of a family, mean over prompts."""
    effect = (rows["before"] - rows["after"]).to_numpy()
    table = rows.assign(effect=effect, family=rows["place"].map(family))
    return table.groupby(KEY)["effect"].sum() / prompts


def test_skipped_senders_have_almost_no_effect() -> None:
    """A step on 36 prompts in blocks of 12, compared with the same with every sender on every prompt: means differ by
    at most the threshold of the first block, the first block has more senders than the others, and every block has
    some."""
    loaded_model = plant("pointer@llama")
    pairs = noise_pairs(Encoder(loaded_model.tokenizer), range(36))
    settings = SearchSettings(share=SHARE, block=12)
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    search = Search(pairs, settings, MeasuredSteps(surgeon, pairs, settings.block))
    front = sorted({row.node for row in search._select(search.step([]))}, reverse=True)
    screened_rows = search.step(front).rows
    full_rows = search._blocks(search._numbers, front, None, settings).rows
    assert set(screened_rows["prompt"]) == set(pairs.ids)
    senders = screened_rows.groupby("prompt").size()
    assert senders[list(pairs.ids[12:])].mean() < senders[list(pairs.ids[:12])].mean()
    full, screened = sum_by_sender(full_rows, 36), sum_by_sender(screened_rows, 36)
    difference = (full - screened.reindex(full.index, fill_value=0.0)).abs()
    min_effect = EDGE_SHARE * settings.share * abs(search.total_loss)
    assert full.abs().max() > 50 * min_effect
    assert difference.max() <= min_effect
