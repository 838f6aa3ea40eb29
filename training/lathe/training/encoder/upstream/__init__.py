"""Encoders behind an embeddings API with the protocol of OpenAI, which most servers have, or of Cohere.

encoder.py           `UpstreamEncoder`: texts to vectors, as `lathe.training.encoder.encoder.Encoder`
  ├── store.py       vectors and embedding spaces that the API answered, in SQLite: no vector is requested twice
  ├── space.py       the embedding space of the API's vectors, and whether it has changed
  └── client.py      calls to the API, retried by `lathe.training.endpoint_client`
        └── protocols.py   request bodies and answers of each protocol
"""
