"""A local HTTP server."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest

from file_server import FileServer, handler


@pytest.fixture
def server() -> Iterator[FileServer]:
    """Start a server without files."""
    files = FileServer()
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler(files))
    files.address = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield files
    running.shutdown()
    thread.join()
    running.server_close()
