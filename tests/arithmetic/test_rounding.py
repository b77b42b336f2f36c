"""`--rounding SEED` moves what kernels may move, no further, everywhere, and nothing once it is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from rebinding.surgery import Read, TorchSurgeon, derive
from rebinding.surgery.nnsight_surgeon import NNsightSurgeon
from tests.arithmetic.rounding import ULPS, rounding
from tests.close import agree
from tests.everyday import sampled
from tests.families.models import tiny, tokens

ROOT = Path(__file__).parents[2]
A, B, BIAS = torch.randn(3, 20, 20, generator=torch.Generator().manual_seed(0)).unbind()
OPERATIONS = {
    "mm": lambda a, b, _: a @ b,
    "bmm": lambda a, b, _: a.expand(3, -1, -1) @ b,
    "mv": lambda a, b, _: a @ b[0],
    "linear": lambda a, b, bias: linear(a, b, bias[0]),
    "baddbmm": lambda a, b, bias: torch.baddbmm(bias[None], a[None], b[None]),
    "einsum": lambda a, b, _: torch.einsum("ij,kj->ik", a, b),
    "softmax": lambda a, *_: a.softmax(-1),
    "log_softmax": lambda a, *_: a.log_softmax(-1),
    "sdpa": lambda a, b, bias: scaled_dot_product_attention(*(x.view(1, 1, 20, 20) for x in (a, b, bias))),
}


def max_difference(actual: Tensor, expected: Tensor) -> float:
    """The largest difference in units in the last place."""
    return float(((actual - expected).abs() / expected.abs().clamp(min=1e-30)).max() / torch.finfo(expected.dtype).eps)


@pytest.mark.parametrize("name", OPERATIONS)
def test_products_and_softmaxes_move_and_by_no_more_than_stated(name: str) -> None:
    plain = OPERATIONS[name](A, B, BIAS)
    with rounding(1):
        first, second = (OPERATIONS[name](A, B, BIAS) for _ in range(2))
    with rounding(2):
        exact = OPERATIONS[name](A, B, BIAS)
    assert 1 <= max_difference(first, plain) <= ULPS + 1, "one more for rounding what was moved"
    assert torch.equal(first, second), "the same call gives the same bits"
    assert not torch.equal(first, exact)
    assert torch.equal(OPERATIONS[name](A, B, BIAS), plain), "and then it is over"


def test_batch_size_layout_and_address_change_the_rounding() -> None:
    shifted = torch.empty(A.numel() + 1)[1:].view_as(A).copy_(A)  # four bytes off, as in a file
    with rounding(1):
        full = A @ B
        assert not torch.equal((A[:7] @ B), full[:7])
        assert not torch.equal(A @ B.T.contiguous().T, full)
        assert not torch.equal(shifted @ B, full)


def test_zeros_stay_and_sixteen_bits_move_by_one_unit() -> None:
    """No order of summation makes a sum of zeros anything else; in 16 bits kernels sum in 32 and round once."""
    masked = A.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), torch.finfo(torch.float32).min)
    half, half_b = A.bfloat16(), B.bfloat16()
    plain = half @ half_b
    with rounding(1):
        assert (masked.softmax(-1).triu(1) == 0).all()
        assert ((A * 0) @ B == 0).all()
        assert 0 < max_difference(half @ half_b, plain) <= 2, "one unit, counted from either side of a power of two"


def test_rounding_reaches_the_library_and_both_surgeons() -> None:
    """And what it moves in a whole model is what the tests' tolerance allows."""
    model, prompts = tiny("llama"), tokens("llama")
    read = [Read("logits", at=[12])]
    surgeons = [kind(model, derive(model)) for kind in (NNsightSurgeon, TorchSurgeon)]
    runs = [
        lambda: model(prompts).logits,
        *(lambda surgeon=surgeon: surgeon.run(surgeon.record(prompts), [], read)[0] for surgeon in surgeons),
    ]
    for run in runs:
        plain = run()
        with rounding(1):
            rounded = run()
        assert not torch.equal(rounded, plain)
        assert agree(rounded, plain)
        assert torch.equal(run(), plain)


INNER = """
import json, os, subprocess, sys, torch
def test_it():
    with open(os.environ["FOUND"], "a") as file:
        print(json.dumps([torch.ones(9, 9).mm(torch.ones(9, 9)).tolist(), os.environ["REBINDING_STORE"]]), file=file)
    if "WITHIN" not in os.environ:
        command = [sys.executable, "-m", "pytest", "-p", "conftest", __file__]
        subprocess.run(command, env=os.environ | {"WITHIN": "1"}, check=True)
"""


@pytest.mark.parametrize("way", sampled(["option", "environment"]))
def test_runs_within_a_run_round_too_and_keep_their_evidence_apart(way: str, tmp_path: Path) -> None:
    """Ones times ones is nine in any order of summation, so what is not nine was moved."""
    (tmp_path / "test_inner.py").write_text(INNER)
    environment = os.environ | {"FOUND": str(tmp_path / "found"), "REBINDING_STORE": str(tmp_path / "store")}
    environment["PYTEST_ADDOPTS"] = "--rounding 5" if way == "environment" else ""
    arguments = ["--rounding", "5"] if way == "option" else []
    command = [sys.executable, "-m", "pytest", "-p", "conftest", str(tmp_path / "test_inner.py"), *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout
    outer, inner = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert outer == inner
    assert outer[0] != [[9.0] * 9] * 9
    assert outer[1] == f"{tmp_path / 'store'}-rounding-5"
