"""A fitted chain as safetensors bytes whose header also holds the steps, to send to another process."""

import json

from safetensors.torch import load, save

from lathe.transforms.artifact.folder import HEADER_LENGTH_BYTES
from lathe.transforms.chain.chain import Chain


def serialize_chain(chain: Chain) -> bytes:
    """Return a fitted chain as safetensors bytes, whose header holds the specs of the steps and `normalize`.

    Metadata are left out. The outputs of the rebuilt chain are bit-equal.
    """
    # safetensors accepts only strings as metadata, and no tensors that are not contiguous.
    header = {"steps": json.dumps(chain.specs()), "normalize": json.dumps(chain.normalize)}
    return save({name: tensor.cpu().contiguous() for name, tensor in chain.tensors().items()}, header)


def deserialize_chain(payload: bytes) -> Chain:
    """Rebuild the fitted chain from bytes that `serialize_chain` returned, and return it."""
    # `safetensors.torch.load` returns the tensors without the metadata, so the header is read here.
    end = HEADER_LENGTH_BYTES + int.from_bytes(payload[:HEADER_LENGTH_BYTES], "little")
    header = json.loads(payload[HEADER_LENGTH_BYTES:end])["__metadata__"]
    return Chain.from_tensors(json.loads(header["steps"]), json.loads(header["normalize"]), load(payload))
