"""Icechunk repositories, at the snapshot of a branch or a tag when they are opened."""

from __future__ import annotations

import fcntl
import functools
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import jax

_PREFIX = "icechunk+"
_FORM = (
    "icechunk+file:///FOLDER, icechunk+s3://BUCKET/PREFIX or icechunk+gs://BUCKET/PREFIX,"
    " with ?branch=NAME (main by default), ?tag=NAME or ?snapshot=ID"
)

# Kind of a ref -> argument of icechunk.
_REFS = {"branch": "branch", "tag": "tag", "snapshot": "snapshot_id"}


def is_repository(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the address of an Icechunk repository."""
    return str(path).startswith("icechunk")


@functools.lru_cache(64)
def session_at(url: str) -> Any:
    """A session of an address; a process reads one snapshot of it, whatever follows."""
    icechunk, parts, kind, name = _parsed(url)
    try:
        repository = icechunk.Repository.open(_storage(parts))
    except icechunk.IcechunkError as error:
        raise ValueError(
            f"{url}: no Icechunk repository can be read there ({_brief(error)}); "
            f"expected {_FORM}"
        ) from error
    try:
        options: Any = {_REFS[kind]: name}
        session = repository.readonly_session(**options)
    except icechunk.IcechunkError as error:
        raise ValueError(
            f"{url}: no {kind} {name!r} ({_brief(error)}); its branches are "
            f"{', '.join(sorted(repository.list_branches()))}, its tags "
            f"{', '.join(sorted(repository.list_tags())) or 'none'}"
        ) from error
    if kind == "branch" and jax.distributed.is_initialized():
        raise ValueError(
            f"{url}: several processes may open a branch before and after a commit; "
            f"write ?snapshot={session.snapshot_id}, which is its snapshot now"
        )
    return session


def writable_repository(url: str) -> tuple[Any, str]:
    """The repository of an address, created if it is not there, and the branch.

    Raises:
        ValueError: the address is none of a branch, or it cannot be written to.
    """
    icechunk, parts, kind, name = _parsed(url)
    if kind != "branch":
        raise ValueError(f"{url}: only a branch can be written to, got a {kind}")
    if parts.scheme == "file" and Path(parts.path).is_file():
        raise ValueError(f"{url}: expected a folder, got a file")
    try:
        # Which says that folders need the lock below.
        icechunk.set_logs_filter("error")
        repository = icechunk.Repository.open_or_create(_storage(parts))
        if name not in repository.list_branches():
            repository.create_branch(name, repository.lookup_branch("main"))
    except icechunk.IcechunkError as error:
        raise _unwritable(url, error) from error
    return repository, name


def check_writable(url: str, repository: Any) -> None:
    """Raises a ValueError if nothing can be written to a repository."""
    import icechunk

    branch = f"check-{uuid.uuid4()}"
    try:
        repository.create_branch(branch, repository.lookup_branch("main"))
        repository.delete_branch(branch)
    except icechunk.IcechunkError as error:
        raise _unwritable(url, error) from error


@contextmanager
def one_at_a_time(url: str) -> Iterator[None]:
    """Keeps other commits to a folder away meanwhile; Icechunk does so in buckets."""
    parts = urlsplit(url.removeprefix(_PREFIX))
    if parts.scheme != "file":
        yield
        return
    with Path(parts.path, ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def committed(session: Any, message: str) -> bool:
    """Commits; returns whether no other commit came in between."""
    import icechunk

    try:
        session.commit(message)
    except icechunk.ConflictError:
        return False
    except icechunk.IcechunkError as error:
        raise OSError(f"the commit failed: {_brief(error)}") from error
    return True


def _parsed(url: str) -> tuple[Any, SplitResult, str, str]:
    """The package, and the parts of an address with the kind and name of its ref."""
    try:
        import icechunk
    except ImportError:
        raise ValueError(
            f"{url}: an Icechunk repository needs icechunk: pip install "
            "credit-jax[cloud]"
        ) from None
    parts = urlsplit(url.removeprefix(_PREFIX))
    ref = dict(parse_qsl(parts.query, keep_blank_values=True)) or {"branch": "main"}
    is_location = parts.scheme in ("file", "s3", "gs") and parts.path.strip("/")
    is_ref = [*ref] in [[name] for name in _REFS]
    if not (url.startswith(_PREFIX) and is_location and is_ref):
        raise ValueError(f"{url}: expected {_FORM}")
    ((kind, name),) = ref.items()
    return icechunk, parts, kind, name


def _storage(parts: Any) -> Any:
    """Where a repository is, with the credentials of the environment, or anonymous."""
    import icechunk

    if parts.scheme == "file":
        return icechunk.local_filesystem_storage(parts.path)
    at = {"bucket": parts.netloc, "prefix": parts.path.strip("/")}
    if parts.scheme == "gs":
        has = any(name.startswith("GOOGLE_") for name in os.environ)
        return icechunk.gcs_storage(
            **at, from_env=has or None, anonymous=not has or None
        )
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    has = {"AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"} & {
        *os.environ
    }
    return icechunk.s3_storage(
        **at,
        region=os.environ.get("AWS_REGION", "us-east-1"),
        endpoint_url=endpoint,
        allow_http=bool(endpoint and endpoint.startswith("http:")),
        force_path_style=endpoint is not None,
        from_env=bool(has),
        anonymous=not has,
    )


def _unwritable(url: str, error: Exception) -> ValueError:
    return ValueError(
        f"--out: {url} cannot be written to ({_brief(error)}); give another address, "
        "or set credentials that may write there"
    )


def _brief(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
