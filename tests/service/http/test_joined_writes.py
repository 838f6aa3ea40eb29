"""Responses that are sent in one system call."""

import asyncio

import pytest

from lathe.service.http.joined_writes import JoinedWrites


class Recorder:
    """A transport that records what it was asked to do."""

    def __init__(self):
        self.calls, self.closing = [], False

    def writelines(self, pieces):
        self.calls.append(b"+".join(pieces))

    def write_eof(self):
        self.calls.append("eof")

    def close(self):
        self.calls.append("close")
        self.closing = True

    def is_closing(self):
        return self.closing

    def get_write_buffer_size(self):
        return 7


def run(test):
    """Run a test's coroutine with a transport and its recorder."""

    async def on_a_loop():
        recorder = Recorder()
        await test(JoinedWrites(recorder, asyncio.get_running_loop()), recorder)

    asyncio.run(on_a_loop())


def test_a_head_is_sent_with_its_body_and_later_pieces_follow_in_order():
    async def test(transport, recorder):
        transport.write(b"head")
        assert recorder.calls == []
        transport.write(b"body")
        assert recorder.calls == [b"head+body"]
        transport.write(b"more")
        await asyncio.sleep(0)
        assert recorder.calls == [b"head+body", b"more"]

    run(test)


@pytest.mark.parametrize(("closing", "sent"), [(False, [b"head"]), (True, [])])
def test_a_head_without_a_body_is_sent_when_the_iteration_ends_or_dropped_if_the_connection_closes(closing, sent):
    async def test(transport, recorder):
        transport.write(b"head")
        recorder.closing = closing
        await asyncio.sleep(0)
        assert recorder.calls == sent

    run(test)


@pytest.mark.parametrize(("ending", "call"), [("close", "close"), ("write_eof", "eof")])
def test_what_is_kept_is_sent_before_the_end_and_nothing_after_it(ending, call):
    async def test(transport, recorder):
        transport.write(b"head")
        getattr(transport, ending)()
        assert recorder.calls == [b"head", call]
        await asyncio.sleep(0)
        assert recorder.calls == [b"head", call]

    run(test)


def test_the_size_of_the_buffer_counts_what_is_kept():
    async def test(transport, recorder):
        transport.write(b"head")
        assert transport.get_write_buffer_size() == 4 + 7

    run(test)
