"""Encoders behind an embeddings API: OpenAI's, text-embeddings-inference's, Ollama's or Cohere's.

encoder.py           `UpstreamEncoder`: texts to vectors, as `training.encoder.encoder.Encoder`
  ├── store.py       vectors that were answered, in SQLite: none is asked for twice
  ├── probes.py      whether the API's vectors are still of the same space
  └── calls.py       calls with retries, rate limits and a circuit breaker
        ├── client.py          one call: an answer, or one kind of failure
        │     └── protocols.py   bodies and answers of each protocol
        └── circuit_breaker.py
"""
