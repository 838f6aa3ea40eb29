"""Encoders behind an embeddings API: OpenAI's, which most servers speak, or Cohere's.

encoder.py           `UpstreamEncoder`: texts to vectors, as `lathe.training.encoder.encoder.Encoder`
  ├── store.py       vectors and spaces that the API answered, in SQLite: no vector is asked for twice
  └── calls.py       calls with retries, rate limits and a circuit breaker
        ├── client.py          one call: an answer, or one kind of failure
        │     └── protocols.py   bodies and answers of each protocol
        └── circuit_breaker.py
"""
