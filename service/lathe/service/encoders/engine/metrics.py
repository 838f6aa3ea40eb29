"""Prometheus metrics of encoders."""

from prometheus_client import Counter, Gauge, Histogram

from lathe.service.encoders.engine.work import Reply
from lathe.training.encoder.upstream.client import Usage

QUEUE_SECONDS = Histogram(
    "lathe_queue_seconds",
    "Time a request waited for a worker",
    ["encoder"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
BATCH_TEXTS = Histogram(
    "lathe_batch_texts",
    "Texts in one pass through a model",
    ["encoder"],
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512),
)
BATCH_TOKENS = Histogram(
    "lathe_batch_tokens",
    "Tokens in one pass through a model, padding included",
    ["encoder"],
    buckets=(16, 64, 256, 512, 1024, 2048, 4096, 16384, 65536),
)
TEXTS = Counter("lathe_texts", "Texts encoded", ["encoder"])
TOKENS = Counter("lathe_tokens", "Tokens encoded", ["encoder"])
PADDING = Counter("lathe_padding_tokens", "Tokens computed that were padding only", ["encoder"])
INFERENCE_SECONDS = Counter("lathe_inference_seconds", "Time workers were busy", ["encoder"])
WAITING_TEXTS = Gauge("lathe_queue_texts", "Texts accepted and not yet answered", ["encoder"])
WAITING_TOKENS = Gauge("lathe_queue_tokens", "The same in tokens, estimated", ["encoder"])
ENCODER_PROCESSES = Gauge("lathe_encoder_processes", "Processes of an encoder that are ready", ["encoder"])
WORKER_RESTARTS = Counter("lathe_worker_restarts", "Workers that went and were started again", ["encoder"])
UNLOADS = Counter("lathe_encoder_unloads", "Times that an encoder was unloaded", ["encoder"])
MODEL_BYTES = Gauge("lathe_model_bytes", "Bytes of the weights of a loaded encoder, in all its processes", ["encoder"])

UPSTREAM: dict[Usage, Counter] = {
    "calls": Counter("lathe_upstream_calls", "Calls to an embeddings API", ["encoder"]),
    "retries": Counter("lathe_upstream_retries", "Those that were tries after the first", ["encoder"]),
    "failures": Counter("lathe_upstream_failures", "Those that got no vectors", ["encoder"]),
    "texts": Counter("lathe_upstream_texts", "Texts in the answers of an embeddings API", ["encoder"]),
    "tokens": Counter("lathe_upstream_tokens", "Tokens of these texts; estimated if the API counts none", ["encoder"]),
    "cost": Counter("lathe_upstream_cost", "Cost of these tokens in the currency of the price", ["encoder"]),
}


def observe_batches(encoder: str, reply: Reply) -> None:
    """Update an encoder's metrics (times, texts, tokens, padding) with the batches of a worker's reply."""
    INFERENCE_SECONDS.labels(encoder).inc(reply.seconds)
    for texts, tokens, padded in reply.batches:
        BATCH_TEXTS.labels(encoder).observe(texts)
        BATCH_TOKENS.labels(encoder).observe(padded)
        TEXTS.labels(encoder).inc(texts)
        TOKENS.labels(encoder).inc(tokens)
        PADDING.labels(encoder).inc(padded - tokens)
