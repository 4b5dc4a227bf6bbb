"""Threads with a bounded queue, which pass their errors on to the caller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from credit_jax.io.activity import activity

Item = TypeVar("Item")
_END: Any = object()  # in place of an item after the last one


class Workers:
    """A thread pool with a limited number of pending jobs."""

    def __init__(self, num_threads: int, max_pending: int, name: str) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._slots = threading.BoundedSemaphore(max_pending)
        self._lock = threading.Lock()
        self._error: BaseException | None = None
        # Total times, of all jobs and of waiting in `submit`.
        self.seconds = self.blocked = 0.0

    def submit(self, job: Callable[[], Any]) -> Future:
        """Queues a job; blocks while `max_pending` jobs wait or run."""
        self.check()
        start = time.perf_counter()
        with activity(f"waiting for {self._name} jobs"):
            self._slots.acquire()
        with self._lock:
            self.blocked += time.perf_counter() - start
        try:
            return self._pool.submit(self._run, job)
        except BaseException:
            self._slots.release()
            raise

    def check(self) -> None:
        """Raises the first error of a job."""
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Waits for all jobs, and raises the first error."""
        with activity(f"finishing {self._name} jobs"):
            self._pool.shutdown(wait=True)
        self.check()

    def cancel(self) -> None:
        """Drops the waiting jobs, and waits for the running ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, job: Callable[[], Any]) -> None:
        start = time.perf_counter()
        try:
            if self._error is None:
                job()
        except BaseException as error:
            with self._lock:
                # Later calls raise the first error, and the other jobs are dropped.
                self._error = self._error or error
        finally:
            with self._lock:
                self.seconds += time.perf_counter() - start
            self._slots.release()


class ReadAhead(Generic[Item]):
    """An iterator whose items a background thread computes in advance."""

    def __init__(self, items: Iterable[Item], num_ahead: int) -> None:
        self._items = iter(items)
        self.seconds = 0.0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="read")
        # One is computed beside those that wait.
        count = num_ahead + 1
        self._pending = deque(self._pool.submit(self._compute) for _ in range(count))

    def __next__(self) -> Item:
        with activity("reading"):
            item = self._pending[0].result()
        if item is _END:
            raise StopIteration
        self._pending.popleft()
        self._pending.append(self._pool.submit(self._compute))
        return item

    def __iter__(self) -> Iterator[Item]:
        return self

    def close(self) -> None:
        """Stops the thread, and waits for it."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _compute(self) -> Any:
        start = time.perf_counter()
        try:
            return next(self._items, _END)
        finally:
            self.seconds += time.perf_counter() - start
