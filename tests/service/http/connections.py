"""A server of raw connections with an application under test, and what it answers."""

import asyncio
import inspect
import json
import re
from functools import partial, wraps

import uvicorn
import uvloop
from uvicorn.server import ServerState

from lathe.service.http.connection import Connection, ConnectionLimits, check_connections


class Served:
    """Connections to an application that counts its requests and answers with the headers and body it got."""

    def __init__(self):
        self.requests, self.answer, self.release = 0, b"", asyncio.Event()
        self.release.set()
        self.state, self.writers = ServerState(), []

    async def app(self, scope, receive, send):
        self.requests += 1
        body, message = b"", await receive()
        while message.get("more_body") and message["type"] == "http.request":
            body, message = body + message["body"], await receive()
        if message["type"] == "http.disconnect":
            return
        await self.release.wait()
        said = self.answer or b"%d headers, %d bytes" % (len(scope["headers"]), len(body + message["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
        await send({"type": "http.response.body", "body": said})

    async def connect(self, sent=b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(sent)
        await asyncio.sleep(0.02)
        return reader, writer

    async def say(self, sent):
        """Return what is answered on a connection of its own, until the server closes it."""
        reader, writer = await self.connect(sent)
        said = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return said

    def pass_seconds(self, seconds):
        check_connections(self.state.connections, asyncio.get_running_loop().time() + seconds)


def serving(test, app=None, **limits):
    """Run a test's coroutine against a server with these limits, of an application or of the one that counts."""

    async def run():
        served = Served()
        shared = ConnectionLimits(**{"connections": 1000, "body_seconds": 120.0} | limits)
        config = uvicorn.Config(
            app or served.app,
            http=partial(Connection, limits=shared),
            interface="asgi3",
            log_config=None,
            lifespan="off",
        )
        config.load()
        make = partial(config.http_protocol_class, config=config, server_state=served.state, app_state={})
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        served.port = server.sockets[0].getsockname()[1]
        try:
            await test(served)
        finally:
            for transport in [one.transport for one in (*served.writers, *served.state.connections)]:
                transport.abort()
            server.close()
            await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the loop that serves
        runner.run(run())


def on_connections(**limits):
    """Decorate a coroutine to be a test on a server with these limits, which it gets as its first argument.

    The server's application is the fixture `app` of the test, or the one that counts.
    """

    def decorate(test):
        @wraps(test)
        def run(**arguments):
            serving(partial(test, **arguments), arguments.get("app"), **limits)

        signature = inspect.signature(test)
        run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # pytest finds fixtures
        return run

    return decorate


def status(said):
    """Return the status of an answer. Assert that an error is in the service's shape."""
    head, _, body = said.partition(b"\r\n\r\n")
    number = int(head[9:12])
    if number != 200:
        assert b"connection: close" in head and re.search(rb"content-length: (\d+)", head)[1] == b"%d" % len(body)
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    return number
