"""A listener that ended is noticed without a connection."""

import socket

from lmj_trainer.transport.listening import listens


def test_a_port_is_listened_at_until_it_is_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listens(port)
        with socket.create_connection(("127.0.0.1", port)):
            assert listens(port)
    assert not listens(port)


def test_a_connection_from_a_port_is_no_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        assert not listens(connection.getsockname()[1])
