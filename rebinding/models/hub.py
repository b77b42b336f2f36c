"""The Hub: download a model in two steps, and read which licence a base model states.

Configuration and tokenizer are fetched first, then weights. For the licence no weights are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard, constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from tqdm.auto import tqdm

from rebinding.models.errors import UnknownName, UnreachableModel
from rebinding.models.names import Origin

DESCRIPTION: tuple[str, ...] = ("*.json", "*.jinja")
"""Configuration and tokenizer: small, and enough to refuse a model before its weights are fetched."""
TRANSPORT: type[Exception] = next(base for base in HfHubHTTPError.__bases__ if base is not OSError)
"""The base of all errors of the HTTP library that the Hub's client uses: another library in other versions."""
ORIGINAL = "original/*"
"""The weights of some repositories once more, in another format."""
README = "README.md"
MAX_README_CHARACTERS = 100_000
"""Characters of a README.md that are read; the front matter comes first."""
MAX_NAME_LENGTH = 200
"""Characters of a licence's name."""
UNSTATED = ("", "other", "unknown", "none")
"""Values of `license:` that name no licence."""
ANCHOR = re.compile(r"(?:^|[\s\[{,])&\S")
"""An anchor in YAML. Copies of copies of one may take time that doubles with each line, so it is not read."""


@dataclass(frozen=True)
class Download:
    """Files of a Hub model that are not on this machine, with their sizes in bytes."""

    repository: str
    sizes: tuple[tuple[str, int], ...]

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.sizes)


class TerminalBar(tqdm):  # type: ignore[type-arg]  # no type of items at run time
    """A progress bar that is shown on a terminal only."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": kwargs.get("disable") or None})


class NoBar(tqdm):  # type: ignore[type-arg]
    """No progress bar: what is read is small."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "disable": True})


def fetch(repository: str, revision: str | None, files: Sequence[str] = DESCRIPTION) -> Path:
    """The folder with these files of a Hub model, downloaded unless they are on this machine."""
    bar = NoBar if files is DESCRIPTION else TerminalBar
    with _explained(repository, revision):
        return Path(snapshot_download(repository, revision=revision, tqdm_class=bar, **_patterns(files)))


def plan_download(repository: str, revision: str | None, files: Sequence[str]) -> Download:
    """Which of these files are not on this machine; nothing is fetched. Files of unknown size count as empty."""
    with _explained(repository, revision):
        plan = snapshot_download(repository, revision=revision, dry_run=True, tqdm_class=NoBar, **_patterns(files))
    assert not isinstance(plan, str), "a dry run gives a plan, not a folder"
    return Download(repository, tuple((file.filename, file.file_size or 0) for file in plan if file.will_download))


def cache_folder() -> Path:
    """Where the Hub's own client keeps what it fetches."""
    return Path(constants.HF_HUB_CACHE)


def _patterns(files: Sequence[str]) -> dict[str, Any]:
    return {"allow_patterns": list(files), "ignore_patterns": ORIGINAL}


@contextmanager
def _explained(repository: str, revision: str | None) -> Iterator[None]:
    """Refusals of the Hub, and a network that fails, as errors of ours that say what to do."""
    at = f"{repository} (revision {revision or 'main'})"
    try:
        yield
    except GatedRepoError as error:
        raise UnreachableModel(
            f"{at} is gated: open https://huggingface.co/{repository} and accept its licence, then log in on this "
            "machine (`hf auth login`, or set HF_TOKEN); or pass a folder that holds the model, as ALIAS=FOLDER "
            "or FOLDER"
        ) from error
    except RevisionNotFoundError as error:
        raise UnknownName(
            f"{repository} exists but has no revision {revision!r}: give a branch, a tag or a full commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise UnknownName(
            f"the Hub has no {repository} that you can read: check the spelling; if it is private, log in "
            "(`hf auth login`)"
        ) from error
    except HFValidationError as error:
        raise UnknownName(
            f"{repository!r} cannot be a Hub id ({error}); write owner/name, or the path of a folder"
        ) from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HfHubHTTPError, TRANSPORT) as error:
        raise UnreachableModel(
            f"{at} is not on this machine and the Hub cannot be reached: connect (and unset HF_HUB_OFFLINE), or let "
            "HF_HOME point to a cache that holds it, or pass a folder, as ALIAS=FOLDER or FOLDER"
        ) from error


def commit_of(folder: Path) -> str | None:
    """The commit of a folder in the Hub's cache, where each snapshot is named after its commit."""
    return folder.name if folder.parent.name == "snapshots" else None


def stated_licence(base: Origin) -> str | None:
    """The licence that a base states, or None: `general.license` of a GGUF file, else `license:` in the front matter
    of the README.md of a folder or of a model on the Hub (nothing else is fetched)."""
    if base.kind == "gguf":
        from rebinding.models.gguf import header  # imports transformers

        return _single_licence(header(Path(base.target)).facts.get("general.license"))
    if base.kind not in ("folder", "hub"):
        return None
    folder = Path(base.target) if base.kind == "folder" else fetch(base.target, base.revision, [README])
    if not (folder / README).is_file():
        return None
    with (folder / README).open(encoding="utf-8-sig", errors="replace") as file:
        return licence_of_page(file.read(MAX_README_CHARACTERS))


def licence_of_page(page: str) -> str | None:
    """`license:` in the front matter of a README.md; where that is `other`, `license_name:`."""
    front_matter = REGEX_YAML_BLOCK.search(page)
    if front_matter is None or ANCHOR.search(front_matter[2]):
        return None
    try:
        data = ModelCard(page, ignore_metadata_errors=True).data
    except Exception:  # YAML and the Hub's client raise errors of several kinds on broken front matter
        return None
    return _single_licence(data.get("license")) or _single_licence(data.get("license_name"))


def _single_licence(value: object) -> str | None:
    """The value, if it names one licence and is printable. Several licences count as none: it is unknown which one
    holds."""
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    name = value.strip() if isinstance(value, str) else ""
    fits = name.isprintable() and len(name) <= MAX_NAME_LENGTH and "," not in name
    return name if fits and name.lower() not in UNSTATED else None
