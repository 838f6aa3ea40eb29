"""A fitted chain as bytes, sent to a process that applies it: safetensors whose header also names the steps."""

import json

from safetensors.torch import load, save

from transforms.chain.chain import Chain

LENGTH_BYTES = 8
"""At the start of safetensors: the length of its header, little-endian."""


def serialize_chain(chain: Chain) -> bytes:
    """Serialize a fitted chain without its metadata; the outputs of the deserialized chain are bit-equal."""
    header = {"steps": json.dumps(chain.specs()), "normalize": json.dumps(chain.normalize)}
    return save({name: tensor.cpu().contiguous() for name, tensor in chain.tensors().items()}, header)


def deserialize_chain(payload: bytes) -> Chain:
    """Build the chain that `serialize_chain` serialized."""
    end = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
    header = json.loads(payload[LENGTH_BYTES:end])["__metadata__"]
    return Chain.from_tensors(json.loads(header["steps"]), json.loads(header["normalize"]), load(payload))
