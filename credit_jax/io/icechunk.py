"""Icechunk repositories, at the snapshot of a branch or a tag when they are opened."""

from __future__ import annotations

import functools
import os
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jax

_PREFIX = "icechunk+"
_FORM = (
    "icechunk+file:///FOLDER, icechunk+s3://BUCKET/PREFIX or icechunk+gs://BUCKET/PREFIX,"
    " with ?branch=NAME (main by default), ?tag=NAME or ?snapshot=ID"
)


def is_repository(path: str | os.PathLike[str]) -> bool:
    """Whether a path is the address of an Icechunk repository."""
    return str(path).startswith("icechunk")


@functools.lru_cache(64)
def session_at(url: str) -> Any:
    """A session of an address; a process reads one snapshot of it, whatever follows."""
    try:
        import icechunk
    except ImportError:
        raise ValueError(
            f"{url}: an Icechunk repository needs icechunk: pip install "
            "credit-jax[cloud]"
        ) from None
    parts = urlsplit(url.removeprefix(_PREFIX))
    ref = dict(parse_qsl(parts.query, keep_blank_values=True)) or {"branch": "main"}
    names = {"branch": "branch", "tag": "tag", "snapshot": "snapshot_id"}
    is_place = parts.scheme in ("file", "s3", "gs") and parts.path.strip("/")
    if (
        not url.startswith(_PREFIX)
        or not is_place
        or [*ref] not in ([n] for n in names)
    ):
        raise ValueError(f"{url}: expected {_FORM}")
    ((kind, name),) = ref.items()
    try:
        repository = icechunk.Repository.open(_storage(parts))
    except icechunk.IcechunkError as error:
        raise ValueError(
            f"{url}: no Icechunk repository can be read there ({_brief(error)}); "
            f"expected {_FORM}"
        ) from error
    try:
        options: Any = {names[kind]: name}
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


def _brief(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
