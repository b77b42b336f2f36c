"""Memory of a path-patching stage against the number of senders: the curve should be flat.

    python -m benchmarks.memory

Stage B on random Llamas of 6 to 48 layers (hidden 256, 8 heads), 16 prompts of 75 tokens, a receiver in every second
layer. Printed is the largest resident memory during the stage less that before it, sampled every 5 ms.
"""

from __future__ import annotations

import threading
import time

import psutil
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.model import TOKENS, benchmark_prompts
from rebinding.experiments.path_patching import MESSAGES
from rebinding.experiments.paths.measure import NoisePairs, score_stage
from rebinding.experiments.paths.request import PAPER, PathSettings
from rebinding.surgery import TorchSurgeon, derive
from rebinding.surgery.memory import CPU_BUDGET


class Peak(threading.Thread):
    """The largest resident memory while it runs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.process, self.largest, self.finished = psutil.Process(), 0, threading.Event()

    def run(self) -> None:
        while not self.finished.is_set():
            self.largest = max(self.largest, self.process.memory_info().rss)
            time.sleep(0.005)


def measure(layers: int) -> tuple[int, float]:
    """Senders, and megabytes above what stood before the stage."""
    torch.manual_seed(0)
    config = LlamaConfig(  # type: ignore[call-arg]  # attn_implementation is not in its signature
        vocab_size=32000, hidden_size=256, intermediate_size=512, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    surgeon = TorchSurgeon(model, derive(model))
    scene = NoisePairs(
        tuple(range(16)), tuple(benchmark_prompts(16)), tuple(benchmark_prompts(16, seed=2)), torch.arange(16),
        torch.arange(16)[:, None],
    )  # fmt: skip
    scene.block(surgeon, PAPER[1], slice(0, 16))
    receivers = [(layer, layer % 8) for layer in range(1, layers, 2)]
    before, peak = psutil.Process().memory_info().rss, Peak()
    peak.start()
    score_stage(surgeon, scene, PAPER[1], receivers, settings=PathSettings("none", "head", block=16))
    peak.finished.set()
    peak.join()
    return layers * 8, (peak.largest - before) / 1e6


if __name__ == "__main__":
    bound = (CPU_BUDGET + 2 * MESSAGES) / 1e6
    print(f"{TOKENS} tokens, 16 prompts; stated bound {bound:.0f} MB (a batch, and messages read and delivered)")
    measure(6)
    for number in (6, 12, 24, 48):
        senders, extra = measure(number)
        print(f"{senders:5} senders {extra:8.0f} MB")
