"""Being asked to stop: SIGINT and SIGTERM as a flag that the training loop looks at between steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_requests(*, active: bool) -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set within the block, after which their handlers are put back.

    Nothing sets it where `active` is False, or outside the main thread, which alone may handle signals.
    """
    asked = threading.Event()
    if not active or threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(_: int, __: FrameType | None) -> None:
        asked.set()

    before = {name: signal.signal(name, ask) for name in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
