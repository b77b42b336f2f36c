"""Options that all test folders share."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from rebinding.pytest_plugin import without_collecting

with without_collecting():
    import rebinding.testing  # noqa: F401 - PyTorch, pandas and what else the plugin below needs

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REAL = Path(__file__).parent / "tests" / "real"

pytest_plugins = ["fixtures.plugin"]  # `fixtures` alone would be pytest's own plugin of that name


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--reference FOLDER` adds packs to `tests/reference`. `--rounding SEED` simulates another processor's last bits.
    `--real FOLDER` has real tokenizers and weights; without it tests/real is not collected."""
    parser.addoption(
        "--real",
        metavar="FOLDER",
        help="run tests/real on this output of `python -m tests.real.fetch` (default: no tests/real)",
    )
    parser.addoption(
        "--reference",
        action="append",
        default=[],
        metavar="FOLDER",
        help="also compare with this pack of reference numbers; repeatable (default: only with those in the tree)",
    )
    parser.addoption(
        "--rounding",
        type=int,
        metavar="SEED",
        help="tests only: round matrix products and softmax like another processor, see tests/arithmetic/rounding.py"
        " (default: no change; e.g. --rounding 1)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """With --rounding, change rounding in this process and in every pytest that it starts, and use another store."""
    _check_real(config)
    seed = config.getoption("--rounding")
    if seed is None:
        return
    from rebinding.evidence.store import default_root
    from tests.arithmetic.rounding import rounding

    options, store = os.environ.get("PYTEST_ADDOPTS", ""), str(default_root())
    if not options.endswith(f"--rounding={seed}"):
        os.environ["PYTEST_ADDOPTS"] = f"{options} --rounding={seed}".strip()
    if not store.endswith(f"-rounding-{seed}"):
        os.environ["REBINDING_STORE"] = f"{store}-rounding-{seed}"
    stack = ExitStack()
    stack.enter_context(rounding(seed))
    config.add_cleanup(stack.close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip tests/real without --real."""
    return True if collection_path == REAL and not config.getoption("--real") else None


def _check_real(config: pytest.Config) -> None:
    """Refuse tests/real by name without --real; pytest never ignores a path that is named."""
    paths = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    if not config.getoption("--real") and any(REAL in (path, *path.parents) for path in paths):
        raise pytest.UsageError("tests/real needs --real FOLDER; `tox -e real` makes that folder")
