"""`python -m tests.real.judged FOLDER [--headline]`: is every row judged on every model that learned, and how?

Nobody expects a verdict of these models, and pytest calls a sentence that does not hold a failure. So what counts here
is that each row has come to a verdict, and that enough of them are decided: a row that is INVALID on a model that does
the task, for a reason of ours, would be so on the paper's models as well. With `--headline` the rows are those of the
headline claims.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from claims.catalogue import claims
from rebinding.learned.shelf import learned_models
from rebinding.report.folder import ReportedRun, read

DECIDED = ("REPLICATED", "NOT REPLICATED", "REPORTED")
HEADLINE = "--headline"
MINIMUM = 1 / 3
"""The share of rows that must be decided on each model."""


def lacking(run: ReportedRun, headline: bool = False) -> list[str]:
    """What is wrong with a run: rows without a verdict, and models on which too few are decided."""
    expected = {claim.id for claim in claims() if (claim.headline if headline else not claim.long)}
    rows = []
    for name in (model.name for model in learned_models()):
        verdicts = {claim.id: claim.verdict for claim in run.claims if claim.model == name}
        missing = sorted(expected - verdicts.keys())
        decided = sum(verdict in DECIDED for verdict in verdicts.values())
        if missing:
            rows.append(f"{name}: no verdict of {len(missing)} rows, such as {', '.join(missing[:3])}")
        elif decided < MINIMUM * len(verdicts):
            rows.append(f"{name}: {decided} of {len(verdicts)} rows are decided, less than a third")
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print how the rows come out on each model; 1 where something is lacking."""
    if len(arguments) not in (1, 2) or (len(arguments) == 2 and arguments[1] != HEADLINE):
        print(f"usage: python -m tests.real.judged FOLDER [{HEADLINE}]", file=sys.stderr)
        return 2
    run = read(Path(arguments[0]))
    for model in run.models:
        counts = Counter(row.verdict for row in run.summary.find_model(model.name).rows)
        print(f"{model.name}: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    wrong = lacking(run, HEADLINE in arguments)
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
