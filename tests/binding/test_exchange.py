"""Real queries and keys: against hooks on full forwards, on both surgeons, and on plants whose codes are known."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from rebinding.evidence import Evidence
from rebinding.experiments.binding.cases import every_pair
from rebinding.experiments.binding.conditions import K, Q
from rebinding.experiments.binding.exchange import run_exchange
from rebinding.experiments.binding.kinds import KINDS
from rebinding.experiments.binding.measures import summary
from rebinding.surgery import SurgeryError
from rebinding.world.designs import design
from rebinding.world.prompts import Encoded
from tests.binding.setup import BLOCK, SLOTS, Bench, planted, random_model, shape
from tests.circuit.naive import hooked
from tests.circuit.test_paths import apart
from tests.close import FELT, allowance
from tests.surgery.models import FAMILIES, Family

EYES = design("counterbalanced", split="evaluation")


def donors_of(bench: Bench, n: int) -> list[list[Encoded]]:
    return [bench.encoder.encode(EYES.direction(number, slot) for number in range(n)) for slot in range(SLOTS)]


def exchange(bench: Bench, n: int, **options: Any) -> Evidence:
    settings: dict[str, Any] = {"donors": donors_of(bench, n), "heads": bench.heads, "ids": range(n)} | options
    return run_exchange(
        bench.surgeon,
        bench.prompts("counterbalanced", n),
        token=bench.encoder.answer_token,
        pairs=every_pair(SLOTS),
        **settings,
    )


def written(value: Tensor, span: slice, tokens: list[int]) -> Any:
    """A hook on a projection that writes a head's vectors (token, head_dim) at some tokens."""

    def act(module: Any, args: Any, out: Tensor) -> Tensor:
        out = out.clone()
        out[0, tokens, span] = value
        return out

    return act


def naive(bench: Bench, family: Family, own: Encoded, donor: Encoded, i: int, j: int, condition: str) -> Tensor:
    """Logits of the objects in slot order: one case, one full forward, on a model in which no query heads share keys.
    All of the other prompt's queries, and one's own keys, are what the projections gave in unedited runs."""
    anatomy, dim = bench.surgeon.anatomy, bench.surgeon.anatomy.head_dim
    model = apart(bench.surgeon.model, family, anatomy, **shape(bench.tokenizer, family))
    layers, readout = anatomy.layer_modules(model), own.roles["readout"]
    hooks = []
    for layer, head in bench.heads:
        span, attention = slice(head * dim, (head + 1) * dim), layers[layer].self_attn
        if condition == Q.name:
            value, tokens = seen(model, donor, attention.q_proj)[[readout], span], [readout]
            hooks.append((attention.q_proj, "out", written(value, span, tokens)))
        else:
            places = [[own.roles[f"context_{kind}[{slot}]"] for kind in KINDS] for slot in (i, j)]
            value = seen(model, own, attention.k_proj)[places[1] + places[0], span]
            hooks.append((attention.k_proj, "out", written(value, span, places[0] + places[1])))
    with hooked(hooks), torch.no_grad():
        logits = model(torch.tensor([own.ids]), use_cache=False).logits[0, readout]
    return logits[[bench.encoder.answer_token(word) for word in own.prompt.story.objects]]


def seen(model: Any, prompt: Encoded, module: Any) -> Tensor:
    """What a projection gives in an unedited run: (token, width)."""
    kept: list[Tensor] = []
    with hooked([(module, "out", lambda module, args, out: kept.append(out[0].clone()))]), torch.no_grad():
        model(torch.tensor([prompt.ids]), use_cache=False)
    return kept[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_hooks_on_full_forwards(family: Family) -> None:
    bench, n = random_model(family), 2
    rows = exchange(bench, n).rows.drop_duplicates(["condition", "prompt", "i", "j"])
    prompts, donors = bench.prompts("counterbalanced", n), donors_of(bench, n)
    assert len(rows) == 2 * n * (SLOTS - 1)
    for row in rows.to_dict("records"):
        own, i, j = prompts[row["prompt"]], row["i"], row["j"]
        want = naive(bench, family, own, donors[j][row["prompt"]], i, j, row["condition"])
        found = torch.tensor([row[f"after_logit_{slot}"] for slot in range(SLOTS)])
        clean = torch.tensor([row[f"before_logit_{slot}"] for slot in range(SLOTS)])
        close = allowance(want, least=1.0)
        assert float((found - want).abs().max()) <= close
        assert float((found - clean).abs().max()) > FELT * close


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_both_surgeons_give_the_same_table(family: Family) -> None:
    ours, theirs = (exchange(bench, 2).rows for bench in (random_model(family), random_model(family, oracle=True)))
    after = ours[[name for name in ours if name.startswith("after_")]].to_numpy()
    pd.testing.assert_frame_equal(ours, theirs, check_exact=False, rtol=0, atol=allowance(after, least=1.0))


@cache
def table(mechanism: str) -> pd.DataFrame:
    return summary(exchange(planted(mechanism, "llama"), BLOCK)).set_index("condition")


def test_a_real_query_turns_all_there_is() -> None:
    """`pointer`: `match` then looks at slot j as it looked at slot i; `fetch`, the other head of B, asks the same
    whatever is asked."""
    evidence = exchange(planted("pointer", "llama"), BLOCK)
    rows, heads = evidence.rows, planted("pointer", "llama").heads
    late = rows[(rows["condition"] == Q.name) & (rows["layer"] == max(layer for layer, _ in heads))]
    for when, wanted in (("before", "i"), ("after", "j")):
        masses = late[[f"{when}_object_{slot}" for slot in range(SLOTS)]].to_numpy()
        assert (masses.argmax(axis=1) == late[wanted].to_numpy()).all()
    early = rows[(rows["condition"] == Q.name) & (rows["layer"] == min(layer for layer, _ in heads))]
    assert float(early["moved"].max()) < 0.05


def test_labels_turn_b_where_slots_do_not() -> None:
    """`lexical`: no mean turns it (`test_planted`), and both a real query and real keys do; `recency`: nothing does."""
    assert table("lexical").loc[[Q.name, K.name], "switch_example"].min() == 1
    assert table("recency").loc[[Q.name, K.name], "dR"].abs().max() < 0.1


def test_donors_are_the_same_story() -> None:
    bench = planted("pointer", "llama")
    others = [bench.encoder.encode(EYES.direction(number + 1, slot) for number in range(2)) for slot in range(SLOTS)]
    with pytest.raises(SurgeryError, match="a donor for slot 0 is the prompt's own story"):
        exchange(bench, 2, donors=others)
    with pytest.raises(SurgeryError, match="a donor for slot 0"):
        exchange(bench, 2, donors=donors_of(bench, 2)[::-1])
