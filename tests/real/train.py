"""`python -m tests.real.train`: train the learned models whose adapters do not come with the project, one a core.

The base's file is looked for where `rebinding.learned.shelf` says; an interrupted training resumes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from rebinding.learned.shelf import CARD_FILE, Learned, learned_models


def train(learned: Learned) -> int:
    """Train one model in a process of its own; its exit status."""
    return subprocess.run([sys.executable, "-m", "rebinding", "train", learned.name], check=False).returncode


def main() -> int:
    """Train what is missing; 1 if a training failed."""
    missing = [learned for learned in learned_models() if not (learned.adapter_folder / CARD_FILE).is_file()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return int(any(pool.map(train, missing)))


if __name__ == "__main__":
    raise SystemExit(main())
