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
from tests.surgery.models import tiny, tokens

ROOT = Path(__file__).parents[2]
ONE, OTHER, BIAS = torch.randn(3, 20, 20, generator=torch.Generator().manual_seed(0)).unbind()
OPERATIONS = {
    "mm": lambda one, other, _: one @ other,
    "bmm": lambda one, other, _: one.expand(3, -1, -1) @ other,
    "mv": lambda one, other, _: one @ other[0],
    "linear": lambda one, other, bias: linear(one, other, bias[0]),
    "baddbmm": lambda one, other, bias: torch.baddbmm(bias[None], one[None], other[None]),
    "einsum": lambda one, other, _: torch.einsum("ij,kj->ik", one, other),
    "softmax": lambda one, *_: one.softmax(-1),
    "log_softmax": lambda one, *_: one.log_softmax(-1),
    "sdpa": lambda one, other, bias: scaled_dot_product_attention(*(x.view(1, 1, 20, 20) for x in (one, other, bias))),
}


def apart(got: Tensor, want: Tensor) -> float:
    """The largest difference in units in the last place."""
    return float(((got - want).abs() / want.abs().clamp(min=1e-30)).max() / torch.finfo(want.dtype).eps)


@pytest.mark.parametrize("name", OPERATIONS)
def test_products_and_softmaxes_move_and_by_no_more_than_stated(name: str) -> None:
    plain = OPERATIONS[name](ONE, OTHER, BIAS)
    with rounding(1):
        moved, again = (OPERATIONS[name](ONE, OTHER, BIAS) for _ in range(2))
    with rounding(2):
        otherwise = OPERATIONS[name](ONE, OTHER, BIAS)
    assert 1 <= apart(moved, plain) <= ULPS + 1, "one more for rounding what was moved"
    assert torch.equal(moved, again), "the same call gives the same bits"
    assert not torch.equal(moved, otherwise)
    assert torch.equal(OPERATIONS[name](ONE, OTHER, BIAS), plain), "and then it is over"


def test_another_batch_size_layout_or_address_rounds_otherwise() -> None:
    shifted = torch.empty(ONE.numel() + 1)[1:].view_as(ONE).copy_(ONE)  # four bytes off, as in a file
    with rounding(1):
        whole = ONE @ OTHER
        assert not torch.equal((ONE[:7] @ OTHER), whole[:7])
        assert not torch.equal(ONE @ OTHER.T.contiguous().T, whole)
        assert not torch.equal(shifted @ OTHER, whole)


def test_zeros_stay_and_sixteen_bits_move_by_one_unit() -> None:
    """No order of summation makes a sum of zeros anything else; in 16 bits kernels sum in 32 and round once."""
    masked = ONE.masked_fill(torch.ones(20, 20, dtype=torch.bool).triu(1), torch.finfo(torch.float32).min)
    half, other = ONE.bfloat16(), OTHER.bfloat16()
    plain = half @ other
    with rounding(1):
        assert (masked.softmax(-1).triu(1) == 0).all()
        assert ((ONE * 0) @ OTHER == 0).all()
        assert 0 < apart(half @ other, plain) <= 2, "one unit, counted from either side of a power of two"


def test_it_reaches_the_library_and_both_surgeons() -> None:
    """And what it moves in a whole model is what the tests' tolerance allows."""
    model, prompts = tiny("llama"), tokens("llama")
    read = [Read("logits", positions=[12])]
    surgeons = [kind(model, derive(model)) for kind in (NNsightSurgeon, TorchSurgeon)]
    runs = [
        lambda: model(prompts).logits,
        *(lambda one=one: one.run(one.record(prompts), [], read)[0] for one in surgeons),
    ]
    for run in runs:
        plain = run()
        with rounding(1):
            moved = run()
        assert not torch.equal(moved, plain)
        assert agree(moved, plain)
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
    given = ["--rounding", "5"] if way == "option" else []
    command = [sys.executable, "-m", "pytest", "-p", "conftest", str(tmp_path / "test_inner.py"), *given]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    outer, inner = [json.loads(line) for line in (tmp_path / "found").read_text().splitlines()]
    assert outer == inner
    assert outer[0] != [[9.0] * 9] * 9
    assert outer[1] == f"{tmp_path / 'store'}-rounding-5"
