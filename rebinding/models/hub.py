"""Download a model from the Hub in two steps: first configuration and tokenizer, then weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import httpx
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from rebinding.models.errors import AbsentModel, GatedModel, OfflineModel, UnknownName

DESCRIPTION: tuple[str, ...] = ("*.json", "*.jinja")
"""Configuration and tokenizer: small, and enough to refuse a model before its weights are fetched."""


def fetch(repository: str, revision: str | None, files: Sequence[str] = DESCRIPTION) -> Path:
    """The folder with these files of a Hub model, downloaded unless they are on this machine."""
    at = f"{repository} (revision {revision or 'main'})"
    try:
        folder = snapshot_download(
            repository, revision=revision, allow_patterns=list(files), ignore_patterns="original/*"
        )
    except GatedRepoError as error:
        raise GatedModel(
            f"{at} is gated: open https://huggingface.co/{repository} and accept its licence, then log in on this "
            "machine (`hf auth login`, or set HF_TOKEN); or pass a folder that holds the model, as ALIAS=FOLDER "
            "or FOLDER"
        ) from error
    except RevisionNotFoundError as error:
        raise AbsentModel(
            f"{repository} exists but has no revision {revision!r}: give a branch, a tag or a full commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise AbsentModel(
            f"the Hub has no {repository} that you can read: check the spelling; if it is private, log in "
            "(`hf auth login`)"
        ) from error
    except HFValidationError as error:
        raise UnknownName(
            f"{repository!r} cannot be a Hub id ({error}); write owner/name, or the path of a folder"
        ) from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, httpx.TransportError, HfHubHTTPError) as error:
        raise OfflineModel(
            f"{at} is not on this machine and the Hub cannot be reached: connect (and unset HF_HUB_OFFLINE), or let "
            "HF_HOME point to a cache that holds it, or pass a folder, as ALIAS=FOLDER or FOLDER"
        ) from error
    return Path(folder)


def commit_of(folder: Path) -> str | None:
    """The commit of a folder in the Hub's cache, where each snapshot is named after its commit."""
    return folder.name if folder.parent.name == "snapshots" else None
