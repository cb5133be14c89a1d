"""An HTTP server in a thread of the test's own process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler], host: str, port: int) -> Iterator[int]:
    """Have ``handler`` answer at ``host`` and ``port``, or (0) at one that is free: the port that it has."""
    # The head of an answer and its content are two writes: the second would wait 40 ms for the first to be acknowledged.
    handler.disable_nagle_algorithm = True  # type: ignore[attr-defined]
    server = ThreadingHTTPServer((host, port), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
