"""Encoders behind an embeddings API: OpenAI's, which most servers speak, or Cohere's.

encoder.py           `UpstreamEncoder`: texts to vectors, as `lathe.training.encoder.encoder.Encoder`
  ├── store.py       vectors and spaces that the API answered, in SQLite: no vector is asked for twice
  ├── space.py       which space the vectors are of
  └── client.py      calls to the API, retried by `lathe.training.endpoint_client`
        └── protocols.py   bodies and answers of each protocol
"""
