"""Remote files, read by byte ranges with obstore, without the GIL."""

from __future__ import annotations

import functools
import io
import os
from typing import Any

from credit_jax.io.icechunk import is_repository, session_at
from credit_jax.io.retry import brief, retried

# URLs whose existence is cached.
_CACHE_SIZE = 100_000
# Without any of these, obstore asks a cloud's machine for its identity, and waits.
_CREDENTIALS = (
    *("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"),
    *("GOOGLE_SERVICE_ACCOUNT_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, such as gs://, s3://, http:// or https://."""
    return "://" in str(path)


@functools.lru_cache(64)
def store_at(url: str) -> Any:
    """The obstore store of a URL, with the credentials of the environment, if any."""
    try:
        from obstore import store
    except ImportError:
        raise ValueError(
            f"{url}: data at an address need obstore: pip install credit-jax[cloud]"
        ) from None
    options: dict[str, Any] = {"skip_signature": not has_credentials()}
    if url.startswith("http"):
        options = {"client_options": {"allow_http": url.startswith("http:")}}
    return store.from_url(url, **options)


def has_credentials() -> bool:
    """Whether the environment has credentials of a cloud."""
    return any(name in os.environ for name in _CREDENTIALS)


def exists(path: str) -> bool:
    """Whether a path or URL exists; for URLs, the first answer is cached."""
    return _url_exists(path) if is_url(path) else os.path.exists(path)


@functools.lru_cache(_CACHE_SIZE)
def _url_exists(url: str) -> bool:
    if is_repository(url):
        return bool(session_at(url))
    store, key = parts_of(url)
    import obstore

    try:
        retried(lambda: obstore.head(store, key), url)
    except FileNotFoundError:
        return False
    except Exception as error:
        raise OSError(f"{url}: cannot be reached ({brief(error)})") from error
    return True


def read_bytes(path: str, start: int = 0, size: int = -1) -> bytes:
    """Reads a range of bytes of a local file or a URL; -1 to the end."""
    if not is_url(path):

        def read() -> bytes:
            with open(path, "rb") as file:
                file.seek(start)
                return file.read(size)

        return retried(read, path)
    store, key = parts_of(path)
    import obstore

    try:
        if size >= 0:
            ranged = lambda: obstore.get_range(store, key, start=start, length=size)  # noqa: E731
            return bytes(retried(ranged, path))
        options: Any = {"range": {"offset": start}} if start else {}
        full = lambda: obstore.get(store, key, options=options).bytes()  # noqa: E731
        return bytes(retried(full, path))
    except Exception as error:
        raise OSError(f"{path}: cannot be read ({brief(error)})") from error


def open_binary(url: str) -> io.BufferedReader:
    """Opens a URL as a binary file that is read by ranges."""
    store, key = parts_of(url)
    import obstore

    try:
        reader = retried(lambda: obstore.open_reader(store, key), url)
        return io.BufferedReader(_Ranges(reader), 2**16)
    except Exception as error:
        raise OSError(f"{url}: cannot be opened ({brief(error)})") from error


def parts_of(url: str) -> tuple[Any, str]:
    """The store of the host or bucket, and the path in it."""
    scheme, _, remainder = url.partition("://")
    host, _, key = remainder.partition("/")
    return store_at(f"{scheme}://{host}"), key


class _Ranges(io.RawIOBase):
    """obstore's reader as a Python raw file."""

    def __init__(self, reader: Any) -> None:
        super().__init__()
        self._read, self.seek, self.tell = reader.read, reader.seek, reader.tell
        self.readable = self.seekable = lambda: True

    def readinto(self, buffer: Any) -> int:
        data = memoryview(self._read(len(buffer)))
        buffer[: len(data)] = data
        return len(data)
