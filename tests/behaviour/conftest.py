"""Fixtures of the service, which most of what a user sees needs."""

from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from tests.helpers import eventually

if find_spec("fastapi"):  # tests of transforms run where only their requirements are installed
    from tests.service.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module


@pytest.fixture(scope="session")
def serve_encoder(lathe):
    """Return a context manager in which the shared app serves one more encoder."""
    from lathe.service.encoder_settings import AddedEncoders, EncoderSettings

    @contextmanager
    def serve(name, **settings):
        added = AddedEncoders(lathe.settings.home)
        added.add(EncoderSettings(name=name, **settings), set())
        assert lathe.client.put(f"/encoders/{name}", headers=lathe.admin).status_code == 202
        eventually(lambda: lathe.services.embedder.engines[name].state in ("ready", "idle"))
        yield lathe
        assert lathe.client.delete(f"/encoders/{name}", headers=lathe.admin).status_code == 200
        added.remove(name)

    return serve
