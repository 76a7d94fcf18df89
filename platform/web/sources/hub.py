"""An adapter on the Hugging Face hub, named with the commit that holds it: `owner/name@<40 hex digits>`."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import SourceFailed, SourceMissing, SourceRefused

REFERENCE: Final = re.compile(r"(\w[\w.-]{0,95}/\w[\w.-]{0,95})(?:@(.*))?", re.ASCII | re.DOTALL)
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
ELSEWHERE: Final = "or download the adapter and load its folder"


@dataclass(frozen=True, slots=True)
class HubAdapter:
    repository: str
    commit: str


def parse_hub_id(text: str) -> HubAdapter:
    """Raises SourceRefused: a branch or tag may change under its name, so only a commit says which adapter is meant."""
    found = REFERENCE.fullmatch(text)
    if found is None:
        raise SourceRefused(f"{text[:200]!a} is neither the absolute path of a folder nor owner/name@commit.")
    repository, revision = found.groups()
    if revision is None or not COMMIT.fullmatch(revision):
        problem = "names no commit" if revision is None else f"names {revision[:80]!a}, which is not a commit"
        raise SourceRefused(
            f"{repository} {problem}: branches and tags can change. Load {repository}@<commit>, "
            f"40 hex digits as git log and https://huggingface.co/{repository}/commits/main show them."
        )
    return HubAdapter(repository, revision)


def download(adapter: HubAdapter, folder: Path, limits: Mapping[str, int], optional: Collection[str]) -> None:
    """Put the files that `limits` names, file -> most bytes, into `folder`; of the optional ones what there is. Blocks.

    Raises SourceMissing, SourceRefused (a file is too large), SourceFailed.
    """
    from huggingface_hub import hf_hub_download

    with _hub_errors(adapter):
        there = [file for file, limit in limits.items() if _is_there(adapter, file, limit, file in optional)]
        for file in there:
            hf_hub_download(adapter.repository, file, revision=adapter.commit, local_dir=folder)


def _is_there(adapter: HubAdapter, file: str, limit: int, optional: bool) -> bool:
    from huggingface_hub import errors

    try:
        _check_size(adapter, file, limit)
    except errors.EntryNotFoundError:
        if not optional:
            raise
        return False
    return True


def _check_size(adapter: HubAdapter, file: str, limit: int) -> None:
    """Ask the hub before a byte is loaded; while loading, its client holds the hub to what it said."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    found = get_hf_file_metadata(hf_hub_url(adapter.repository, file, revision=adapter.commit))
    if found.commit_hash is None:
        raise SourceFailed(
            f"The hub does not say which commit its {file} of {adapter.repository} is of, so it may be another than "
            f"{adapter.commit}. Check HF_ENDPOINT and the proxy in between, {ELSEWHERE}."
        )
    if found.commit_hash != adapter.commit:
        raise SourceFailed(
            f"The hub answered with commit {found.commit_hash} for {adapter.commit} of {adapter.repository}."
        )
    if found.size is None:
        raise SourceFailed(f"The hub does not say how large {file} of {adapter.repository} is.")
    if found.size > limit:
        raise SourceRefused(
            f"{file} of {adapter.repository} has {found.size:,} bytes; this server takes at most {limit:,}."
        )


@contextmanager
def _hub_errors(adapter: HubAdapter) -> Iterator[None]:
    from huggingface_hub import errors

    name = adapter.repository
    try:
        yield
    except (SourceFailed, SourceRefused):
        raise
    except errors.OfflineModeIsEnabled:
        raise SourceFailed(f"The hub cannot be used: HF_HUB_OFFLINE is set. Unset it, {ELSEWHERE}.") from None
    except errors.GatedRepoError:
        raise SourceFailed(
            f"{name} is gated: give the server an HF_TOKEN that was granted access, {ELSEWHERE}."
        ) from None
    except errors.RepositoryNotFoundError:
        raise SourceMissing(f"The hub has no model {name}, or the server's HF_TOKEN has no access to it.") from None
    except errors.RevisionNotFoundError:
        raise SourceMissing(f"{name} has no commit {adapter.commit}.") from None
    except errors.EntryNotFoundError as error:
        raise SourceMissing(_first_line(error)) from None
    except Exception as error:  # its HTTP client's own errors are no part of the library's contract
        problem = f"{type(error).__name__}: {_first_line(error)}"
        raise SourceFailed(f"The hub did not return {name} ({problem}). Check the network, {ELSEWHERE}.") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no words")[:300]
