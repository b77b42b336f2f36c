"""Fuzzed names and options are understood, or refused with an error of the package."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.options import _check_circuit, _check_dtype, settings_of
from rebinding.cli.options import readable
from rebinding.learned.shelf import parse as parse_learned
from rebinding.models import ALIASES
from rebinding.models.devices import DTYPES
from rebinding.planted import ARCHITECTURES, MECHANISMS, VARIANTS
from rebinding.study.model_spec import parse_model
from rebinding.study.options import Options
from rebinding.study.settings import Settings
from rebinding.task.designs import DESIGNS
from tests.oracles.faults.fuzz import cases, mutated, refused, typed

PREFIXES = ("planted:", "shape:", "learned:", "gemma2-9b=", "")
BASES = (*MECHANISMS, *ALIASES, "smollm2", "here", "owner/m", "~no-such-user", "x" * 300)
AFTER = ("", *(f"+{name}" for name in VARIANTS), *(f"@{name}" for name in ARCHITECTURES), ".gguf", "/", "@main")
OPTION = st.builds(
    "{}={}".format,
    st.sampled_from(("boxes", "softness", "decoys", "seed", "order")),
    st.sampled_from(("3", "3.5", "0", "1", "²", "٣", "1e9", "-1", "all", "9" * 5000))
    | st.text("0123456789.", max_size=4),
)
SPECIFIED = st.builds(
    "{}{}?{}".format,
    st.sampled_from(("planted:pointer", "planted:global", "learned:smollm2")),
    st.sampled_from(("", "@gemma2")),
    st.lists(OPTION, min_size=1, max_size=2).map("&".join),
)
PUT_TOGETHER = st.builds("{}{}{}".format, *map(st.sampled_from, (PREFIXES, BASES, AFTER)))
NAMES = SPECIFIED | PUT_TOGETHER | typed(*PREFIXES, *BASES, *AFTER, "?", "&", "=", "./", "~", "..", "boxes=3")
CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "dtype": "float32", "text_config": {"num_hidden_layers": 2}}


@pytest.fixture(scope="module", autouse=True)
def fuzz_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a model's folder in it, from which names are read."""
    before, folder = Path.cwd(), tmp_path_factory.mktemp("fuzz")
    (folder / "here").mkdir()
    (folder / "here" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "file").write_text("x")
    os.chdir(folder)
    yield folder
    os.chdir(before)


@cases("names")
@given(NAMES)
def test_fuzzed_names_are_loaded_or_refused(name: str) -> None:
    """A name, a specification, an adapter; and what a terminal is told steers nothing."""
    for read in (parse_model, parse_learned, lambda name: parse_model(name).fixed_dtype):
        why = refused(partial(read, name))
        assert why is None or readable(why).replace("\n", "").isprintable()


PLAIN: dict[str, Any] = {"model": ["planted:pointer"], "device": "cpu"}
NO_OTHER: Any = type(None)
"""No error but those of pytest."""
PATHS = st.none() | typed("here", "file", "/", "..", "~", "x" * 300, "here/config.json", "out")
OPTIONS = st.fixed_dictionaries(
    {
        "model": st.lists(NAMES, max_size=2),
        "planted": st.sampled_from((None, "all")),
        "learned": st.sampled_from((None, "all")),
        "samples": st.none() | st.integers(),
        "skip_prompts": st.just(0) | st.integers(),
        "every_token": st.booleans(),
        "design": st.sampled_from(tuple(DESIGNS)),
        "procedure": st.sampled_from(("both", "published")) | typed("file", "here", "controlled", "published"),
        "circuit": st.none() | typed("published", "discovered", "-all-positions", "file", "here"),
        "dtype": st.none() | st.sampled_from(DTYPES),
        "device": typed("auto", "cpu", "cuda", ":", "0", "99999999999999999999", "mps", "meta"),
        "remote": st.booleans(),
        "store": PATHS,
        "no_store": st.booleans(),
        "report": PATHS,
        "strict_verdicts": st.booleans(),
        "skip_unavailable": st.booleans(),
        "fingerprint": st.lists(st.text(max_size=80), max_size=2),
        "engine": st.sampled_from(("here", "ray")),
        "address": st.none() | typed("auto", "localhost", ":", "6379"),
        "gpus_per_model": st.none() | st.floats(),
        "workers": st.none() | st.integers(),
        "simulate": st.lists(st.sampled_from(("paper", "rival")), max_size=2),
        "runs": st.none() | st.integers(),
        "seed": st.none() | st.integers(),
        "spread": st.lists(st.floats(), max_size=2),
        "cost": st.booleans(),
        "gpu": typed("80GB", "0GB", "nan", "inf", "-1GB", "1e400"),
        "gpus": st.integers(),
        "tflops": st.floats(),
        "bandwidth": st.floats(),
        "tokens": st.none() | st.integers(),
    }
)


@cases("options")
@given(OPTIONS)
def test_fuzzed_options_are_read_or_refused(options: dict[str, Any]) -> None:
    """Read and checked, or a usage error; each option alone as well, since one that is wrong hides the others."""
    for values in (options, *({**PLAIN, name: value} for name, value in options.items())):
        refused(partial(settings_with, values), NO_OTHER)


def settings_with(options: dict[str, Any]) -> Settings:
    return settings_of(Options(**options), marks="not gpu", processes=None)


@cases("models")
@given(st.one_of(st.none(), mutated(CONFIG)), st.sampled_from(("", "gemma2-9b=", "llama3.1-8b=")))
def test_fuzzed_configurations_are_read_or_refused(config: Any, alias: str) -> None:
    """A folder whose configuration says anything, or is missing, as options look at it."""
    path = Path("here") / "config.json"
    path.unlink(missing_ok=True)
    if config is not None:
        path.write_text(json.dumps(config))

    def load_name() -> None:
        models = (parse_model(f"{alias}./here"),)
        assert models[0].dtype in DTYPES
        _check_dtype("float16", models)
        _check_circuit("published", models)

    refused(load_name)


def test_only_package_errors_count_as_refusals() -> None:
    assert refused(lambda: parse_model("planted:pointer")) is None
    assert "unknown model" in str(refused(lambda: parse_model("pointer")))
    for attempt in (lambda: int("x"), lambda: {}["x"], lambda: Path("/nowhere").read_text()):
        with pytest.raises((ValueError, LookupError, OSError)):
            refused(attempt)
