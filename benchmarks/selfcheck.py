"""How much of the self-check's allowance another device uses, on random weights in the shapes of the paper's models.

    python -m benchmarks.selfcheck llama3.2-3b gemma3-12b

A load compares a model's own eager attention with ours, and its own forward with replays of next to nothing, and
allows what rounding may do (`rebinding/models/probe.py`). A device whose kernels use much of that would have
right models refused. So the same comparisons are made here and printed as shares of what is allowed, beside the seconds
of the load and what the two attentions differ by in the model's own dtype, where loads compare nothing.

Not a test, since it needs a GPU (any other device is taken with `--device`, and `--layers` makes a small model of a
large one, to try the command).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.on_gpu import called, measure_usage, random_model
from rebinding.models import ALIASES, check
from rebinding.models.devices import Dtype, check_dtype
from rebinding.models.probe import Allowance, draw_tokens, forward, in_float32, size
from rebinding.models.replays import compare_replays
from rebinding.models.selfcheck import derive_checked
from rebinding.surgery import TorchSurgeon
from rebinding.surgery.attention import NAME

COLUMNS = f"{'':12} {'dtype':9} {'load, s':>8} {'allowed':>9} {'residual':>9} {'replays':>9} {'as it is, logits':>17}"


@dataclass(frozen=True)
class Load:
    """A load by the clock; what differs as shares of what may, and the largest difference of a logit as it is."""

    seconds: float
    allowed: float
    residual: float
    replays: float
    as_it_is: float


def loaded(alias: str, dtype: Dtype, device: torch.device, layers: int | None) -> Load:
    """One model, built, run on its own attention, checked as every subject is, and compared once more."""
    model = random_model(alias, dtype, device, layers)
    anatomy = derive_checked(model)
    tokens, allowance, last = draw_tokens(model, anatomy), Allowance.of_model(model, anatomy), anatomy.n_layers
    _expect(model, "eager")  # a surgeon would put it on ours
    with in_float32(model, anatomy):
        exact = forward(model, anatomy, tokens)
    plain = forward(model, anatomy, tokens).logits
    with measure_usage(device) as usage:
        check(model)
    _expect(model, NAME)
    surgeon = TorchSurgeon(model, anatomy)
    with in_float32(model, anatomy):
        resid = forward(model, anatomy, tokens).modules[last, "resid"]
        recording = surgeon.record(tokens)
        expected = exact.modules[last, "resid"]
        shares = [
            comparison.off / comparison.allowed
            for _, comparison in compare_replays(surgeon, recording, expected, allowance)
        ]
    return Load(
        usage.seconds,
        allowance.relative,
        size(resid - expected) / allowance.of(expected),
        max(shares),
        float((forward(model, anatomy, tokens).logits - plain).abs().max()),
    )


def _expect(model: Any, attention: str) -> None:
    if (implementation := model.config.get_text_config()._attn_implementation) != attention:
        raise RuntimeError(
            f"the model is on {implementation}, not on {attention}: two runs on the same would be compared"
        )


def table(aliases: list[str], dtypes: list[Dtype], device: torch.device, layers: int | None) -> Iterator[str]:
    """A line for every model in every dtype, as soon as it is known."""
    yield COLUMNS
    for alias in aliases:
        for dtype in dtypes:
            checked = loaded(alias, dtype, device, layers)
            shares = f"{checked.allowed:9.2g} {checked.residual:9.2g} {checked.replays:9.2g} {checked.as_it_is:17.3g}"
            yield f"{alias:12} {dtype:9} {checked.seconds:8.1f} {shares}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "aliases", nargs="+", choices=ALIASES, metavar="ALIAS", help="models of the paper, e.g. gemma2-9b"
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=["bfloat16", "float32"],
        metavar="DTYPE",
        help="number formats (default bfloat16 float32)",
    )
    parser.add_argument("--device", default="cuda", metavar="DEVICE", help="device of the model (default cuda)")
    parser.add_argument(
        "--layers", type=int, metavar="N", help="layers, fewer than the shape has, for a trial (default: all)"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    print(f"on {called(device)}, torch {torch.__version__}; residual and replays as shares of what is allowed")
    for line in table(options.aliases, list(map(check_dtype, options.dtypes)), device, options.layers):
        print(line, flush=True)


if __name__ == "__main__":
    main()
