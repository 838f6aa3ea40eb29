"""The addresses that a server listens on."""

import socket

import pytest

from lathe.service.cli.serve import bind


@pytest.fixture
def bound():
    """Bind sockets that listen until the test ends."""
    opened = []

    def listen(host, port=0):
        sockets = bind(host, port)
        opened.extend(sockets)
        for listener in sockets:
            listener.listen()
        return {listener.getsockname()[1] for listener in sockets}

    yield listen
    for listener in opened:
        listener.close()


@pytest.mark.parametrize(
    ("host", "reached"),
    [("::", ["127.0.0.1", "::1"]), ("0.0.0.0", ["127.0.0.1"]), ("127.0.0.1", ["127.0.0.1"]), ("::1", ["::1"])],
)
def test_a_host_is_reached_by_its_families_at_one_port(bound, host, reached):
    (port,) = bound(host)
    for address in reached:
        socket.create_connection((address, port), 5).close()
    for address in {"127.0.0.1", "::1"} - set(reached):
        with pytest.raises(OSError):
            socket.create_connection((address, port), 5)


def test_a_port_in_use_by_one_family_is_in_use(bound):
    (port,) = bound("0.0.0.0")
    with pytest.raises(ValueError, match=f"port {port} is in use on ::"):
        bind("::", port)


def test_the_command_says_what_to_do_about_a_port_in_use(bound, run):
    (port,) = bound("127.0.0.1")
    status, _, output = run("serve", "--port", port)
    assert status == 1
    assert output.splitlines()[-1] == (
        f"lathe: port {port} is in use on 127.0.0.1: stop the program that listens there, "
        "or choose another port with --port or LATHE_PORT; 0 takes a free one"
    )


def test_an_address_of_another_machine_is_named():
    with pytest.raises(ValueError, match="192.0.2.1 is not an address of this machine: .* --host or LATHE_HOST"):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize("host", ["[::]", "no such host", ""])
def test_a_host_without_an_address_is_named(host):
    with pytest.raises(ValueError, match="LATHE_HOST is '.*', which has no address"):
        bind(host, 0)
