"""Drawing and encoding 10,000 published pairs, beside the tokenizer's own batch encoding of the same texts.

Run with `pytest benchmarks/test_prompts.py --benchmark-enable`. What must hold: at most 10 seconds on one core, and at
most three times the tokenizer alone. The tokenizer is kept to one thread, and both are measured in processor time, so
that other work on the machine counts as little as possible.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rebinding.task.designs import design
from rebinding.task.prompts import CHUNK, Encoded, Encoder
from tests.task.tokenizers import byte_level, sentence_pieces, word_level

PAIRS = 10_000
MOST_SECONDS = 10.0
MOST_TIMES = 3.0
TOKENIZERS: dict[str, Callable[[], Any]] = {"words": word_level, "bytes": byte_level, "pieces": sentence_pieces}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One thread, and a garbage collector that does not walk through the imported libraries again and again."""
    monkeypatch.setitem(os.environ, "TOKENIZERS_PARALLELISM", "false")
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def encode_pairs(encoder: Encoder) -> list[Encoded]:
    published = design("published")
    pairs = (published.tracing(prompt_id, "swap_target_box_to_remaining_context_box") for prompt_id in range(PAIRS))
    return encoder.encode(prompt for pair in pairs for prompt in (pair.original, pair.counterfactual))


def encode_texts(tokenizer: Any, texts: list[str]) -> None:
    for start in range(0, len(texts), CHUNK):
        tokenizer(texts[start : start + CHUNK], add_special_tokens=False)


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ten_thousand_published_pairs(benchmark: Any, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Ours and the tokenizer alone take turns in one run; the ratio is that of the fastest rounds."""
    benchmark.group = "10,000 published pairs: draw, write, encode, locate roles"
    encoder = Encoder(TOKENIZERS[name]())
    texts = [encoded_prompt.text for encoded_prompt in encode_pairs(encoder)]
    seconds: list[float] = []

    def tokenize_only() -> None:
        start = time.process_time()
        encode_texts(encoder.tokenizer, texts)
        seconds.append(time.process_time() - start)

    encoded = benchmark.pedantic(encode_pairs, args=(encoder,), setup=tokenize_only, rounds=3, warmup_rounds=0)
    assert [encoded_prompt.text for encoded_prompt in encoded] == texts
    if benchmark.disabled:
        return
    ratio = benchmark.stats.stats.min / min(seconds)
    benchmark.extra_info |= {"tokenizer_alone": min(seconds), "ratio": ratio}
    with capsys.disabled():
        print(f"\n{name}: {benchmark.stats.stats.min:.2f} s, {ratio:.2f} times the tokenizer alone")
    assert benchmark.stats.stats.min < MOST_SECONDS
    assert ratio <= MOST_TIMES
