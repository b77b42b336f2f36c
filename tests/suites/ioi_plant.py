"""A GPT-2 whose weights are written by hand, so that it answers indirect objects as the paper says.

A duplicate-token head marks the name that comes twice, an S-inhibition head tells the last token which name that is,
and two name movers copy a name that is not inhibited. In the rival, which answers as well, nothing is inhibited: the
movers copy every name, and a further head takes the giver's away. Every other head, and the MLPs, write where nobody
reads.

A feature is a direction (+1, -1) in two dimensions of its own, so that the mean of a token's vector is zero. One
constant feature is much larger than all others, so LayerNorm divides by the same number everywhere, and its weight
takes that back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

NAMES = ["Mary", "John", "Tom", "Anna", "James", "Peter", "Sarah", "David", "Emma", "Jack", "Kate", "Paul", "Lucy",
         "Mark", "Laura", "Adam", "Alice", "Simon"]  # fmt: skip
WORDS = ["<unk>", "When", "and", "went", "to", "the", ",", "gave", "a", "store", "park", "school", "book", "ring",
         "ball", *NAMES]  # fmt: skip
LENGTH, GIVER, LAST = 14, 9, 13
"""Tokens of a prompt; the index of the giver's second mention, and of the last token."""
LAYERS, HEADS, WIDTH = 3, 6, 50
CONSTANT = 100.0
MATCH, SINK, EXCLUDED, INHIBITED = 30.0, 15.0, -60.0, -4.0
"""Nats of a head's score: for the right key, for the first token, for the token itself, for an inhibited name."""
GAINS = (4.0, 2.0)
"""Logits that the two name movers write for a name that they look at."""
TAKEN = 8.0
"""Logits that the rival's suppressor takes from the giver."""


@dataclass
class Features:
    """Named features, each with its number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def add(self, names: Iterable[str]) -> None:
        self.numbers |= {name: len(self.numbers) + at for at, name in enumerate(names)}

    def direction(self, name: str) -> Tensor:
        vector = torch.zeros(HEADS * WIDTH)  # (width of the stream)
        at = 2 * self.numbers[name]
        vector[at], vector[at + 1] = 1.0, -1.0
        return vector

    def reading(self, name: str) -> Tensor:
        """What gives a feature's size as a product."""
        return self.direction(name) / 2


FEATURES = Features()
FEATURES.add(f"word {word}" for word in WORDS)
FEATURES.add(f"at {position}" for position in range(LENGTH))
FEATURES.add(f"{space} {name}" for space in ("seen", "inhibited", "out") for name in NAMES)
FEATURES.add(f"unread {number}" for number in range(12))
FEATURES.add(["constant"])
NORM = CONSTANT * (2 / (HEADS * WIDTH)) ** 0.5
"""What LayerNorm divides by."""


@dataclass(frozen=True)
class Head:
    """A head: products of a query and a key feature with their nats, and features that it copies with a gain."""

    name: str
    layer: int
    number: int
    scores: Sequence[tuple[str, str, float]]
    copies: Sequence[tuple[str, str, float]]


def wiring(rival: bool = False) -> list[Head]:
    """The heads of the circuit, or of its rival."""
    sink = ("constant", "at 0", SINK)
    same = [(f"word {name}", f"word {name}", MATCH) for name in NAMES]
    to_names = [(f"at {LAST}", f"word {name}", MATCH) for name in NAMES]
    apart = [(f"inhibited {name}", f"word {name}", INHIBITED) for name in NAMES]
    inhibited = [(f"seen {name}", f"inhibited {name}", 1.0) for name in NAMES]
    to_giver = [sink, (f"at {LAST}", f"at {GIVER}", MATCH)]
    suppression = [(f"seen {name}", f"out {name}", -TAKEN) for name in NAMES]
    movers = [
        Head(
            f"mover {at}", 2, head, [sink, *to_names, *apart], [(f"word {name}", f"out {name}", gain) for name in NAMES]
        )
        for at, (head, gain) in enumerate(zip((1, 4), GAINS, strict=True))
    ]
    seen = [(f"word {name}", f"seen {name}", 1.0) for name in NAMES]
    return [
        Head("duplicate", 0, 2, [sink, *same, (f"at {GIVER}", f"at {GIVER}", EXCLUDED)], seen),
        Head("suppressor", 2, 3, to_giver, suppression) if rival else Head("inhibitor", 1, 3, to_giver, inhibited),
        *movers,
    ]


def build(rival: bool = False) -> tuple[GPT2LMHeadModel, PreTrainedTokenizerFast]:
    """The model and its tokenizer, the same ones every time."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=LENGTH, n_embd=HEADS * WIDTH, n_layer=LAYERS, n_head=HEADS, n_inner=24,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        constant = CONSTANT * FEATURES.direction("constant")
        model.transformer.wte.weight.copy_(
            torch.stack([FEATURES.direction(f"word {word}") for word in WORDS]) + constant
        )
        model.transformer.wpe.weight.copy_(torch.stack([FEATURES.direction(f"at {at}") for at in range(LENGTH)]))
        for norm in (
            model.transformer.ln_f,
            *(norm for layer in model.transformer.h for norm in (layer.ln_1, layer.ln_2)),
        ):
            norm.weight.fill_(NORM)
        for name in NAMES:
            model.lm_head.weight[WORDS.index(name)] = FEATURES.reading(f"out {name}")
        for layer in model.transformer.h:
            _write_decoys(layer)
        for head in wiring(rival):
            _write(head, model.transformer.h[head.layer].attn)
    return model, make_tokenizer()


def _write_decoys(layer: Any) -> None:
    """Random heads and MLPs that write into features that nobody reads."""
    width = HEADS * WIDTH
    unread = torch.stack([FEATURES.direction(f"unread {number}") for number in range(12)])  # (feature, width)
    readable = 1 - (FEATURES.direction("constant") != 0).float()  # (width)
    layer.attn.c_attn.weight.copy_(0.05 * torch.randn(width, 3 * width) * readable[:, None])
    layer.attn.c_proj.weight.copy_(0.05 * torch.randn(width, 12) @ unread)
    layer.mlp.c_fc.weight.copy_(0.05 * torch.randn(width, 24) * readable[:, None])
    layer.mlp.c_proj.weight.copy_(0.05 * torch.randn(24, 12) @ unread)


def _write(head: Head, attention: Any) -> None:
    """A head's queries, keys, values and output, in the columns that are its own."""
    stream, begin = HEADS * WIDTH, head.number * WIDTH
    part = slice(begin, begin + WIDTH)
    for columns in (
        part,
        slice(stream + begin, stream + begin + WIDTH),
        slice(2 * stream + begin, 2 * stream + begin + WIDTH),
    ):
        attention.c_attn.weight[:, columns] = 0.0
    attention.c_proj.weight[part] = 0.0
    for at, (query, key, nats) in enumerate(head.scores):
        size = CONSTANT if query == "constant" else 1.0
        attention.c_attn.weight[:, begin + at] += FEATURES.reading(query) * nats * WIDTH**0.5 / size
        attention.c_attn.weight[:, stream + begin + at] += FEATURES.reading(key)
    for at, (source, target, gain) in enumerate(head.copies):
        attention.c_attn.weight[:, 2 * stream + begin + at] += FEATURES.reading(source)
        attention.c_proj.weight[begin + at] += gain * FEATURES.direction(target)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Every word is a token, whatever blanks stand before it."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(","), behavior="isolated"), pre_tokenizers.Split(Regex(" +"), behavior="removed")]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", clean_up_tokenization_spaces=False)


def save(folder: Path, *, rival: bool = False) -> Path:
    """Write the model as a folder that `--model` takes."""
    model, tokenizer = build(rival)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
