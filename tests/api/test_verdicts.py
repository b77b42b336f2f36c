"""Verdicts as a person sees them in a shell and a notebook, and sites as a person reads of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rebinding import Read, Verdicts
from rebinding.surgery.sites import OTHER_NAMES, SITES
from tests.api.small import model_of, prompts_of

API = (Path(__file__).parents[2] / "docs" / "api.md").read_text("utf-8")
CLAIM = {"number": 4, "title": "keys dominate (Llama)", "published": "REPLICATED", "controlled": None, "standing": None}


def test_verdicts_are_printed_as_the_table_of_headline_claims() -> None:
    """Every model and claim in a line; an empty cell where nothing was judged."""
    artifact = CLAIM | {"controlled": "NOT REPLICATED", "standing": "artifact"}
    verdicts = Verdicts(("a", "b"), {"a": (CLAIM,), "b": (artifact,)}, ({}, {}, {}), False)
    assert [" ".join(line.split()) for line in repr(verdicts).splitlines()[1:]] == [
        "a 4 keys dominate (Llama) REPLICATED",
        "b 4 keys dominate (Llama) REPLICATED NOT REPLICATED artifact",
        "3 rows, not all as expected",
    ]
    assert verdicts.table["controlled"].tolist() == ["", "NOT REPLICATED"]
    assert verdicts._repr_html_().count("<tr") == 3


def test_without_headline_claims_the_table_is_empty() -> None:
    assert "1 rows, as expected" in repr(Verdicts(("a",), {}, ({},), True))


def rows_of_sites() -> dict[str, str]:
    """The shape of each site in the table of the API page."""
    table = re.findall(r"^\| (`.*?`) \| .*? \| \(prompt, (.*?)\) \| (.*?) \|$", API, flags=re.MULTILINE)
    return {site: shape for sites, shape, _ in table for site in re.findall(r"`(\w+)`", sites)}


def test_the_page_lists_every_site_and_every_other_name() -> None:
    assert set(rows_of_sites()) == set(SITES)
    assert all(f"`{name}`" in API for name in OTHER_NAMES)


@pytest.mark.parametrize("site", SITES)
def test_a_read_has_the_shape_that_the_page_states(site: str) -> None:
    model = model_of()
    recording = model.record(prompts_of(model))
    layered, scoped = site in ("resid", "resid_mid", "mlp_out"), site in ("k", "v")
    place = {"layer": 2} if layered else {} if site == "logits" else {"head": [(2, 1), (3, 0)]}
    (values,) = recording.read(Read(site, at=[3, 5], **place, **({"scope": "head"} if scoped else {})))
    config = model.loaded.model.config
    widths = {
        "hidden": config.hidden_size, "head_dim": config.head_dim, "key": prompts_of(model).length,
        "vocabulary": config.vocab_size, "2": 2, "2 heads": 2,
    }  # fmt: skip
    assert tuple(values.shape) == (2, *(widths[name] for name in rows_of_sites()[site].split(", ")))


def test_reads_and_claims_do_without_nnsight() -> None:
    """It is a dependency of the second surgeon alone, and takes seconds to import."""
    code = (
        "import sys, rebinding; from rebinding import Edit, Read; model = rebinding.load('planted:pointer');"
        " recording = model.record(model.stories(rebinding.design('published', model), 1));"
        " recording.run(Edit('z', 0.0, head=(5, 5), at='readout'), Read('answers'), allow_noop=True);"
        " from claims.catalogue import catalogue; catalogue(); print('nnsight' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
