"""`python -m tests.oracles.repetitions MODEL... --repetitions 200 --file FILE`: goes on where the file stops."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rebinding.evidence.store import Store
from rebinding.study.study import Study
from tests.oracles.repetitions.repetitions import counts, headline_rows, judge_rows, make_case, read


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
