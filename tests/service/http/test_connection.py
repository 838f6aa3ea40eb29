"""The HTTP protocol over a real socket. Time is advanced by passing a later time to its check."""

import asyncio
import gc
import logging
import os
import socket
import struct
import weakref
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest

from lathe.service.http import connection
from lathe.service.http.connection import HEADERS, LINE_BYTES, MAX_PIPELINED, ConnectionLimits
from tests.service.http.connections import on_connections, serving, status

HEAD = b"POST /x HTTP/1.1\r\nhost: localhost\r\n"
ENDLESS = {
    "small headers": (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * 10_000),
    "one header": (b"GET / HTTP/1.1\r\na: ", b"x" * 60_000),
    "a name of a header": (b"GET / HTTP/1.1\r\n", b"x" * 60_000),
    "a path": (b"GET /", b"x" * 60_000),
    "empty lines": (b"\r\n", b"\r\n" * 30_000),
    "trailers": (HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 10_000),
    "an extension of a chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\n5;", b"x" * 60_000),
}


@pytest.mark.parametrize("case", ENDLESS)
@on_connections()
async def test_endless_request_heads_and_trailers_are_answered_431(served, case):
    first, more = ENDLESS[case]
    reader, writer = await served.connect(first)
    for _ in range(100):
        writer.write(more)
        await asyncio.sleep(0)
    assert status(await asyncio.wait_for(reader.read(), 10)) == 431
    assert served.requests == (1 if first.startswith(b"POST") else 0)


@on_connections()
async def test_oversized_or_invalid_request_heads_never_reach_the_application(served):
    many = b"".join(b"a%d: b\r\n" % number for number in range(HEADERS))
    assert status(await served.say(HEAD + many + b"\r\n")) == 431
    assert status(await served.say(b"GET /" + b"x" * LINE_BYTES + b" HTTP/1.1\r\n\r\n")) == 414
    assert status(await served.say(b"nonsense\r\n\r\n")) == 400
    assert served.requests == 0


@on_connections()
async def test_a_connection_with_too_many_pipelined_requests_is_closed(served):
    served.release.clear()
    reader, _ = await served.connect(b"GET / HTTP/1.1\r\n\r\n" * 10_000)
    with suppress(ConnectionResetError):  # it is closed over what is still to be read
        assert await asyncio.wait_for(reader.read(), 10) == b""
    assert served.requests == 1
    served.release.set()
    await asyncio.sleep(0.01)
    some = b"GET / HTTP/1.1\r\n\r\n" * MAX_PIPELINED + b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n"
    assert (await served.say(some)).count(b"200 OK") == MAX_PIPELINED + 1


@on_connections()
async def test_requests_at_the_limits_are_served_in_full(served):
    close = b"connection: close\r\n"
    large = b"".join(b"a%d: %s\r\n" % (number, b"x" * 600) for number in range(HEADERS - 1))
    said = await served.say(b"GET /" + b"x" * (LINE_BYTES - 1) + b" HTTP/1.1\r\n" + close + large + b"\r\n")
    assert said.endswith(b"%d headers, 0 bytes" % HEADERS)
    body = b"x" * 1_000_000
    said = await served.say(HEAD + close + b"content-length: 1000000\r\n\r\n" + body)
    assert said.endswith(b"3 headers, 1000000 bytes")
    assert status(await served.say(b"HEAD / HTTP/1.1\r\n" + close + b"\r\n")) == 200  # nothing follows its head
    chunked = HEAD + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nauthorization: late\r\n\r\n"
    said = await served.say(chunked + b"GET / HTTP/1.1\r\n" + close + b"\r\n")  # two at once on one connection
    assert said.count(b"200 OK") == 2 and b"2 headers, 3 bytes" in said and said.endswith(b"1 headers, 0 bytes")


@pytest.mark.parametrize(
    ("sent", "more", "seconds", "answered"),
    [
        (b"GET /", b"x", 30, 408),
        (b"GET / HTTP/1.1\r\na: ", b"x", 30, 408),
        (HEAD + b"content-length: 10\r\n\r\n12345", b"6", 120, 408),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n", b"1", 120, 408),
        (b"", b"", 30, None),
    ],
)
@on_connections()
async def test_incomplete_requests_are_answered_408_or_closed_after_a_timeout(served, sent, more, seconds, answered):
    """An added byte does not extend the time. A connection without any byte is closed without an answer."""
    reader, writer = await served.connect(sent)
    served.pass_seconds(seconds - 1)
    writer.write(more)  # a byte now and then gains no time
    await asyncio.sleep(0.02)
    assert len(served.state.connections) == 1 and not reader.at_eof()
    served.pass_seconds(seconds + 1)
    said = await asyncio.wait_for(reader.read(), 10)
    assert (status(said) if said else None) == answered


@on_connections()
async def test_a_refused_connection_that_stays_open_is_aborted_and_no_timeout_applies_while_the_application_answers(
    served,
):
    before = connection.REFUSED.labels("headers_too_large")._value.get()
    await served.connect(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 50_000)
    assert len(served.state.connections) == 1
    assert connection.REFUSED.labels("headers_too_large")._value.get() == before + 1
    served.pass_seconds(3)
    await asyncio.sleep(0.02)
    assert not served.state.connections
    served.release.clear()
    reader, _ = await served.connect(HEAD + b"content-length: 1\r\n\r\nxGET / HT")  # and begins another
    served.pass_seconds(1000)
    served.release.set()
    assert await reader.readuntil(b"2 headers, 1 bytes")


@on_connections()
async def test_a_connection_whose_client_reads_no_answer_is_closed_within_62_seconds(served):
    served.answer = b"x" * 30_000_000
    _, writer = await served.connect(b"GET / HTTP/1.1\r\n\r\n")
    writer.transport.pause_reading()
    await asyncio.sleep(0.1)
    served.pass_seconds(31)
    assert len(served.state.connections) == 1
    served.pass_seconds(62)
    await asyncio.sleep(0.02)
    assert not served.state.connections


@on_connections(connections=3)
async def test_connections_over_the_limit_are_answered_503_and_logged_once(served, caplog):
    held = [await served.connect() for _ in range(3)]
    with caplog.at_level(logging.WARNING, "lathe.service.http.connection"):
        assert [status(await served.say(b"GET / HTTP/1.1\r\n\r\n")) for _ in range(3)] == [503] * 3
    assert [record.message for record in caplog.records].count("too many connections; new ones are answered 503") == 1
    held[0][1].close()
    await asyncio.sleep(0.05)
    assert status(await served.say(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")) == 200


@on_connections(connections=3)
async def test_at_the_limit_the_connection_that_is_idle_for_longest_gives_way_to_a_new_one(served):
    silent, _ = await served.connect()
    first, writer = await served.connect(b"GET / HTTP/1.1\r\n\r\n")
    second, _ = await served.connect(b"GET / HTTP/1.1\r\n\r\n")
    writer.write(b"GET / HTTP/1.1\r\n\r\n")  # the first is idle again, for less than the second
    await asyncio.sleep(0.02)
    assert status(await served.say(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")) == 200
    assert (await asyncio.wait_for(second.read(), 10)).count(b"200 OK") == 1
    assert not first.at_eof() and not silent.at_eof()

    served.release.clear()
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await served.connect(b"GET / HTTP/1.1\r\n\r\n")
    assert status(await served.say(b"GET / HTTP/1.1\r\n\r\n")) == 503  # nobody is idle
    served.release.set()
    assert (await asyncio.wait_for(first.readuntil(b"0 bytes"), 10)).startswith(b"HTTP/1.1 200")


@on_connections()
async def test_a_connection_that_its_client_resets_while_it_is_idle_is_freed_at_once(served):
    _, writer = await served.connect(b"GET / HTTP/1.1\r\n\r\n")
    (held,) = map(weakref.ref, served.state.connections)
    reset = struct.pack("ii", 1, 0)  # linger for 0 seconds: RST instead of FIN
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    writer.transport.abort()
    await asyncio.sleep(0.05)
    assert not served.state.connections
    gc.collect()
    assert held() is None


def test_connections_near_the_limit_of_open_files_are_answered_503():
    async def test(served):
        fillers = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]  # whatever fills the table
        try:
            answer = await served.say(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")
            assert status(answer) == 503 and b"ulimit -n" in answer
        finally:
            for filler in fillers:
                os.close(filler)
        assert status(await served.say(b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n")) == 200

    serving(test, descriptors=(next_descriptor() + 100) * 8 // 7)


class Idle(SimpleNamespace):
    """A connection between two requests, which a dict can hold."""

    __hash__ = object.__hash__


@pytest.mark.parametrize("descriptors", [64, 300, 1024])
def test_idle_connections_give_way_before_all_descriptors_are_used_however_many_come(descriptors):
    limits = ConnectionLimits(4096, 1.0, descriptors)
    free = set(range(20, descriptors))
    for _ in range(5 * descriptors):
        number = min(free)
        free.remove(number)
        assert limits.find_reason_to_refuse(descriptors - 20 - len(free), number) is None
        limits.idle[Idle(transport=SimpleNamespace(close=partial(free.add, number)))] = None
        assert free


def next_descriptor():
    """Return the lowest free file descriptor."""
    opened = os.open(os.devnull, os.O_RDONLY)
    os.close(opened)
    return opened
