"""`--simulate FILE.toml`: means of one's own, refused names, and the counterexamples of the headline rules."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from claims.catalogue import catalogue
from fixtures.cross_model import Samples, rates_of_runs
from fixtures.dry_runs import Simulation
from fixtures.judging import judge_after_gates
from rebinding.paper.numbers import ALIASES
from rebinding.simulate.worlds import Run, World, WorldFileError, read_world, world
from rebinding.study.model_spec import parse_model
from tests.simulate.studies import judge_row, make_study, row

CASES = tomllib.loads(Path(__file__).with_name("counterexamples.toml").read_text("utf-8"))
QUIET = {name: value / 100 for name, value in world("paper", "gemma2-9b").spreads.items()}
"""With little spread a row at its usual N is as sure as at a huge one."""


def write(folder: Path, text: str) -> Path:
    file = folder / "own.toml"
    file.write_text(text, "utf-8")
    return file


def world_of(folder: Path, model: str, tables: dict[str, Any], like: str | None = None) -> World:
    """The world of a model from a file with these means, and perhaps another model's table of section 5."""
    means = dict(tables.get("means", {}))
    if like is not None:
        means = {id: value for id, value in world("paper", like).means.items() if id.startswith("binding.")} | means
    blocks = [toml("means", means), toml("spreads", QUIET)]
    blocks += [toml(f"candidates.{json.dumps(name)}", table) for name, table in tables.get("candidates", {}).items()]
    read_world.cache_clear()
    return read_world(write(folder, "\n".join(['name = "own"', *blocks]))).world(model)


def toml(name: str, table: dict[str, float]) -> str:
    return "\n".join([f"[{name}]", *(f"{json.dumps(id)} = {float(value)!r}" for id, value in table.items())])


@pytest.mark.parametrize("case", CASES["case"], ids=lambda case: f"{case['row']} on {case['model']}: {case['why']}")
def test_counterexamples_come_to_the_verdict_that_was_written_down(case: dict[str, Any], tmp_path: Path) -> None:
    study = make_study(world_of(tmp_path, case["model"], case, case.get("like")))
    verdict = judge_row(case["row"], study)
    if "expected" in case:
        assert verdict == case["expected"]
    else:
        assert verdict != case["never"]


def test_every_headline_row_of_the_paper_has_a_case_of_each_kind() -> None:
    """REPLICATED somewhere and NOT REPLICATED somewhere, of every published headline row that a world simulates."""
    outcomes = {(case["row"], case.get("expected")) for case in CASES["case"]}
    published = [row.claim for row in catalogue() if row.claim.procedure == "published"]
    headline = [claim for claim in published if claim.headline is not None and claim.models]
    replicated = {"circuit.recovers_accuracy", "circuit.recovers_most", "roles.b_is_the_pointer"}  # in test_worlds
    assert {(claim.id, "NOT REPLICATED") for claim in headline} <= outcomes
    assert {(claim.id, "REPLICATED") for claim in headline if claim.id not in replicated} <= outcomes
    assert len(CASES["case"]) + len(CASES["families"]) > 25


@pytest.mark.parametrize("case", CASES["families"], ids=lambda case: case["why"])
def test_families_differ_only_if_each_shows_its_own_signature(case: dict[str, Any], tmp_path: Path) -> None:
    samples: dict[tuple[str, str], Samples] = {}
    for model in ALIASES:
        own = world_of(tmp_path, model, {}, case["like"].get(model))
        id = "binding.qk_cancels" if parse_model(model).family == "gemma" else "binding.key_dominance"
        study, judged = make_study(own), row(id)
        verdict = judge_after_gates(judged.claim, study, judged.test)
        samples[id, model] = Samples()
        samples[id, model].add(Run(own, 0), verdict)
    models = [parse_model(name) for name in ALIASES]
    rates = {rate.row: rate for rate in rates_of_runs(samples, models, Simulation(("own",), 1, 0))}
    assert dict(rates["binding.families_differ"].outcomes["own"]) == {case["expected"]: 1}


def test_what_is_not_named_is_the_papers(tmp_path: Path) -> None:
    file = '[means]\n"roles.B.pointer" = 1.5\n[means."gemma2-9b"]\n"roles.B.pointer" = 2.5\n[spreads]\nset = 0.3\n'
    own = read_world(write(tmp_path, file))
    of_gemma, of_llama = own.world("gemma2-9b"), own.world("llama3.1-8b")
    assert own.name == "own", "without a name the file's"
    assert (of_gemma.mean("roles.B.pointer"), of_llama.mean("roles.B.pointer")) == (2.5, 1.5)
    assert {**of_gemma.means, "roles.B.pointer": 0} == {**world("paper", "gemma2-9b").means, "roles.B.pointer": 0}
    assert of_gemma.spreads == {**world("paper", "gemma2-9b").spreads, "set": 0.3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[means]\n"binding.qk.dr" = 1', r"no mean in \[means\] 'binding.qk.dr'; the nearest are 'binding.qk.dR'"),
        ('[means."gemma2-9"]\n"binding.qk.dR" = 1', r"no model in \[means\] 'gemma2-9'; the nearest are 'gemma2-9b'"),
        ('[means."llama3.1-8b"]\n"tracing.label" = 1', r"no mean in \[means\] 'tracing.label'"),
        ("[mean]\nx = 1", "no table 'mean'; the nearest are 'means', 'name'"),
        ("[spreads]\nsets = 1", "no spread 'sets'; the nearest are 'set'"),
        ("[spreads]\nset = -1", "set = -1; give a finite number of 0 or more"),
        ("[spreads]\ncorrelation = 1.5", "correlation = 1.5; give a finite number from -1 to 1"),
        ("[spreads]\nfloor = -0.1", "floor = -0.1; give a finite number of 0 or more"),
        ('[candidates."two tokens before"]', "no convention 'two tokens before'; the nearest are"),
        ('[means]\n"accuracy.full" = 1.2', "accuracy.full = 1.2; give a finite number from 0 to 1"),
        ('[means]\n"binding.qk.dR" = true', "binding.qk.dR = True; give a finite number"),
        ('[means]\n"binding.qk.dR" = nan', "binding.qk.dR = nan; give a finite number"),
        ('name = "paper"', "name = 'paper'; give a text that is neither paper nor rival"),
        ("means = 1", "means = 1; give a table"),
        ("means", "is no TOML file"),
    ],
)
def test_what_no_world_has_is_refused(text: str, message: str, tmp_path: Path) -> None:
    read_world.cache_clear()
    with pytest.raises(WorldFileError, match=message):
        read_world(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorldFileError, match="cannot be read"):
        read_world(tmp_path / "missing.toml")
