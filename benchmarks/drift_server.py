"""A server whose observer of drift can be switched on and off: `POST /watching/true`.

Two servers cannot be compared: they differ by some hundredths only because of where they lie in memory.
"""

import asyncio

import uvicorn

from lathe.service import logs
from lathe.service.app import create_app
from lathe.service.cli.serve import bind
from lathe.service.cli.server import Server, limit_this_thread_to_one_core, serve_and_greet
from lathe.service.settings import read_settings
from lathe.training.encoder.devices import keep_freed_blocks


def main() -> None:
    """Serve as `lathe serve --port 0` does."""
    keep_freed_blocks()
    settings = read_settings(port=0)
    limit_this_thread_to_one_core(settings.threads)
    logs.configure(settings.log_level)
    app = create_app(settings)
    services = app.state.services
    live_vectors = services.embedder.live_vectors

    async def watching(on: bool) -> dict[str, bool]:
        live_vectors.observer = services.drift.observe if on else None
        return {"on": on}

    app.add_api_route("/watching/{on}", watching, methods=["POST"])
    config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        runner.run(serve_and_greet(Server(config, services), bind(settings.host, settings.port), settings, services))


if __name__ == "__main__":
    main()
