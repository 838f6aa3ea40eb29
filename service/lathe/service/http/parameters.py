"""Parameters in the paths and query strings of several routes, with their descriptions in the OpenAPI document."""

from typing import Annotated

from fastapi import Path, Query

ModelName = Annotated[
    str, Path(description="A value of `model`, as `/v1/embeddings` takes it.", examples=["all-MiniLM-L6-v2+compact"])
]
ChainName = Annotated[str, Path(description="Name of the chain.", examples=["compact"])]
ChainReference = Annotated[
    str, Path(description="Chain: NAME for its live version, or NAME@VERSION.", examples=["compact@1"])
]
EncoderName = Annotated[str, Path(description="Name of the encoder.", examples=["all-MiniLM-L6-v2"])]
IndexName = Annotated[str, Path(description="Name of the index.", examples=["docs"])]
JobId = Annotated[
    str, Path(description="Id of the job, as the answer that queued it gives it.", examples=["202611270942295f3a9c01"])
]
VersionNumber = Annotated[str, Path(description="Number of the version.", examples=["1"])]
SizeRouteDimensions = Annotated[str, Path(description="Number of dimensions that requests name.", examples=["128"])]
Force = Annotated[bool, Query(description="Whether a version in use is deleted too.", examples=[True])]
