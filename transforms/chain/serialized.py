"""A fitted chain as bytes, to be sent to a process that applies it: safetensors whose header also names the steps."""

import json

from safetensors.torch import load, save

from transforms.chain.chain import Chain

LENGTH_BYTES = 8
"""At the start of safetensors: how long its header is, little-endian."""


def packed(chain: Chain) -> bytes:
    """A fitted chain with its tensors, without its metadata; its outputs are bit-equal after `unpacked`."""
    header = {"steps": json.dumps(chain.specs()), "normalize": json.dumps(chain.normalize)}
    return save({name: tensor.cpu().contiguous() for name, tensor in chain.tensors().items()}, header)


def unpacked(payload: bytes) -> Chain:
    """The chain that `packed` gave."""
    end = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
    header = json.loads(payload[LENGTH_BYTES:end])["__metadata__"]
    return Chain.rebuilt(json.loads(header["steps"]), json.loads(header["normalize"]), load(payload))
