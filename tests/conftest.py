"""The project's own tests ask no network for anything; `pytest claims` may fetch the model that it is given."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
