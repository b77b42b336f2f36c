"""Tiny GGUF files: random weights in few bits, and a byte-level tokenizer that knows the words of the task."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from transformers.convert_slow_tokenizer import bytes_to_unicode

from rebinding.planted.tokenizer import build_tokenizer
from rebinding.task.words import LABELS, OBJECTS

LAYERS, WIDTH, HEADS, KV_HEADS, INNER = 2, 64, 2, 1, 96
HEAD = WIDTH // HEADS
SHAPES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (KV_HEADS * HEAD, WIDTH),
    "attn_v": (KV_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
BEGIN, END = "<|begin|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{{ '<|begin|>' + message['role'] + '\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}"
)
Array = npt.NDArray[np.float32]


def write(path: Path, kind: GGMLQuantizationType, *, architecture: str = "llama", parts: int = 1) -> dict[str, Array]:
    """Write a model; what is returned are the weights that its bits stand for, by the names they have in the file."""
    tokens, merges = _words()
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)
    if parts > 1:
        writer.add_uint16("split.count", parts)
    stand_for = {}
    for name, values in _weights(len(tokens)).items():
        stored = GGMLQuantizationType.F32 if values.ndim == 1 else kind
        bits = quantize(values, stored)
        writer.add_tensor(name, bits, raw_dtype=stored)
        stand_for[name] = dequantize(bits, stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stand_for


def _weights(words: int) -> dict[str, Array]:
    dice = np.random.default_rng(0)

    def matrix(*shape: int) -> Array:
        tensors: Array = (dice.standard_normal(shape) * 1.6 * shape[-1] ** -0.5).astype(np.float32)
        return tensors

    tensors = {"token_embd.weight": matrix(words, WIDTH), "output.weight": matrix(words, WIDTH)}
    tensors["output_norm.weight"] = np.ones(WIDTH, np.float32)
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.{name}.weight": matrix(*shape) for name, shape in SHAPES.items()}
        tensors |= {f"blk.{layer}.{name}_norm.weight": np.ones(WIDTH, np.float32) for name in ("attn", "ffn")}
    return tensors


def _words() -> tuple[list[str], list[str]]:
    """Tokens and merges: the bytes, and every word of the task with the blank before it, letter after letter."""
    blank = bytes_to_unicode()[ord(" ")]
    template = [word for word in build_tokenizer().get_vocab() if word.isalpha()]
    tokens = dict.fromkeys([BEGIN, END, *bytes_to_unicode().values()])
    merges: dict[str, None] = {}
    for word in dict.fromkeys([*template, *LABELS, *OBJECTS]):
        for end in range(len(word)):
            merges[f"{blank}{word[:end]} {word[end]}"] = None
            tokens[f"{blank}{word[: end + 1]}"] = None
    return list(tokens), list(merges)
