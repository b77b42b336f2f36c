"""Headline rows on planted models, again and again on other prompts: how often a verdict is not the planted one.

    python -m tests.oracles.repetitions MODEL... --repetitions 200 --file FILE

goes on where the file stops.

Repetition `k` passes over the first `k * STRIDE` prompts, so its stories are others, in words drawn anew. Published
rows share no prompt between repetitions; a controlled row that passes over stories without a partner may share some.
Means and directions are measured on prompts of their own, and are the same in all repetitions.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from claims.catalogue import Row, catalogue
from fixtures.judging import judge
from rebinding.evidence.store import Store
from rebinding.study.model_spec import parse_model
from rebinding.study.model_under_test import ModelUnderTest
from rebinding.study.settings import Settings
from rebinding.study.study import Study

SAMPLES = 36
"""Prompts of every row: whole blocks of the counterbalanced design."""
STRIDE = 46
"""200 repetitions end before the prompts from which directions are measured."""
OPEN = ("INCONCLUSIVE", "INVALID")


def headline_rows() -> tuple[Row, ...]:
    """The headline rows about one model."""
    return tuple(row for row in catalogue() if row.claim.headline is not None)


def make_case(name: str, number: int, store: Store | None = None) -> ModelUnderTest:
    """A planted model with the prompts of one repetition."""
    model = parse_model(name)
    return ModelUnderTest(
        model, Settings((model,), device="cpu", samples=SAMPLES, skip_prompts=number * STRIDE, store=store)
    )


def judge_rows(case: ModelUnderTest, study: Study, rows: Iterable[Row]) -> Iterator[dict[str, object]]:
    """The verdict of every row, beside the planted one."""
    for row in rows:
        verdict = judge(row.claim, case, study, row.test)
        yield {
            "model": case.name,
            "repetition": case.settings.skip_prompts // STRIDE,
            "id": verdict.id,
            "verdict": verdict.verdict,
            "planted": verdict.expected,
        }


def read(path: Path) -> list[dict[str, object]]:
    """The verdicts in a file; none, if it is not there."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def counts(verdicts: Iterable[Mapping[str, object]]) -> dict[tuple[str, str], Counter[str]]:
    """By model and row how many verdicts are as planted, how many stay open, and how many are false."""
    tallies: dict[tuple[str, str], Counter[str]] = {}
    for verdict in verdicts:
        tallies.setdefault((str(verdict["model"]), str(verdict["id"])), Counter())[outcome(verdict)] += 1
    return tallies


def outcome(verdict: Mapping[str, object]) -> str:
    """`as planted`, `open` or `false`; what no plant says is `reported`."""
    if verdict["planted"] is None:
        return "reported"
    if str(verdict["planted"]).startswith(str(verdict["verdict"])):
        return "as planted"
    return "open" if verdict["verdict"] in OPEN else "false"


def main(arguments: Sequence[str] | None = None) -> None:
    """Repeat, and print a line for every model and row."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracles.repetitions")
    parser.add_argument("models", nargs="+", metavar="MODEL", help="planted models, such as planted:pointer")
    parser.add_argument("--repetitions", type=int, default=200, help="how often each row is judged (default: 200)")
    parser.add_argument("--file", type=Path, required=True, help="where verdicts are kept, a JSON object a line")
    options = parser.parse_args(arguments)
    rows = headline_rows()
    with TemporaryDirectory() as folder, options.file.open("a", encoding="utf-8") as lines:
        for name in options.models:
            finished = {row["repetition"] for row in read(options.file) if str(row["model"]).startswith(name)}
            for number in sorted(set(range(options.repetitions)) - finished):
                case = make_case(name, number, Store(Path(folder)))
                verdicts = list(judge_rows(case, Study.of(case), rows))
                lines.writelines(f"{json.dumps(verdict)}\n" for verdict in verdicts)
                lines.flush()
    for (model, id), count in counts(read(options.file)).items():
        print(f"{model:24} {id:45} {dict(count)}")


if __name__ == "__main__":
    main()
