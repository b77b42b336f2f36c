"""Later prompts leave out senders that did nothing on the first ones, and no others."""

from __future__ import annotations

import pandas as pd

from rebinding.experiments.search.effects import LEAST
from rebinding.experiments.search.request import Settings
from rebinding.experiments.search.search import MeasuredSteps, Search
from rebinding.experiments.search.summary import family
from rebinding.surgery import TorchSurgeon, derive
from rebinding.task.prompts import Encoder
from tests.experiments.anywhere.setup import noise_pairs
from tests.planted.bench import plant

SHARE = 0.0005
"""So little that decoys are run on the first block, too."""
KEY = ["component", "layer", "head", "family"]


def by_sender(rows: pd.DataFrame, prompts: int) -> pd.Series:
    """What each head does at the places of a family, on average over prompts."""
    effect = (rows["before"] - rows["after"]).to_numpy()
    table = rows.assign(effect=effect, family=rows["place"].map(family))
    return table.groupby(KEY)["effect"].sum() / prompts


def test_what_is_left_out_does_next_to_nothing() -> None:
    """A step on 36 prompts in blocks of 12, against the same with every sender on every prompt: means are the same but
    for what a first block may call nothing, the first block has more senders than the others, and none has none."""
    loaded_model = plant("pointer@llama")
    pairs = noise_pairs(Encoder(loaded_model.tokenizer), range(36))
    settings = Settings(share=SHARE, block=12)
    surgeon = TorchSurgeon(loaded_model.model, derive(loaded_model.model))
    search = Search(pairs, settings, MeasuredSteps(surgeon, pairs, settings.block))
    front = sorted({one.node for one in search._kept(search.step([]))}, reverse=True)
    few = search.step(front).rows
    every = search._blocks(search._numbers, front, None, settings).rows
    assert set(few["prompt"]) == set(pairs.ids)
    senders = few.groupby("prompt").size()
    assert senders[list(pairs.ids[12:])].mean() < senders[list(pairs.ids[:12])].mean()
    whole, told = by_sender(every, 36), by_sender(few, 36)
    off = (whole - told.reindex(whole.index, fill_value=0.0)).abs()
    nothing = LEAST * settings.share * abs(search.whole)
    assert whole.abs().max() > 50 * nothing
    assert off.max() <= nothing
