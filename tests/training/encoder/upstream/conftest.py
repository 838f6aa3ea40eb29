from contextlib import contextmanager

import pytest

from lathe.training.encoder.spec import EncoderSpec, StoreSettings, UpstreamSpec
from lathe.training.encoder.upstream.encoder import UpstreamEncoder

PATHS = {"openai": "/v1", "cohere": "/v2"}


@pytest.fixture
def build_spec(embeddings_server):
    """Return a function that builds the spec of an encoder behind the embeddings server."""

    def build(protocol="openai", prompts=None, revision=None, default_prompt_name=None, max_length=None, **settings):
        url = settings.pop("url", f"{embeddings_server.url}{PATHS[protocol]}")
        upstream = UpstreamSpec(**{"url": url, "protocol": protocol, "model": "m", "batch_size": 4} | settings)
        return EncoderSpec(
            "far",
            "m",
            revision=revision,
            prompts=prompts or {},
            default_prompt_name=default_prompt_name,
            max_length=max_length,
            upstream=upstream,
        )

    return build


@pytest.fixture
def connect(build_spec, tmp_path):
    """Return a context manager with an encoder behind the embeddings server, and a store in the test's folder."""

    @contextmanager
    def opened(protocol="openai", patience=5.0, store=True, max_bytes=10**9, identify=True, **settings):
        place = StoreSettings(tmp_path / "upstream", max_bytes) if store else None
        encoder = UpstreamEncoder(build_spec(protocol, **settings), place, patience)
        try:
            if identify:
                encoder.identify()
            yield encoder
        finally:
            encoder.close()

    return opened
