"""The description of an encoder that a worker has loaded."""

from dataclasses import asdict, dataclass
from typing import Any

from lathe.training.encoder.devices import Agreement
from lathe.training.encoder.spec import EncoderSpec, SearchSide
from lathe.training.encoder.text_encoder import find_prompt, find_side_prompt


@dataclass(frozen=True)
class EncoderInfo:
    """What a worker reports of the encoder it loaded, or of the embeddings API it calls.

    Attributes:
        window_tokens: tokens of the texts that are sent to the worker together; 0 for `WINDOW_BATCHES` batches.
    """

    spec: EncoderSpec
    fingerprint: str
    dimensions: int
    max_length: int
    prompts: dict[str, str]
    default_prompt_name: str | None
    device: str
    batch_tokens: int
    agreement: Agreement | None
    warning: str | None = None
    model_bytes: int = 0
    window_tokens: int = 0

    @property
    def name(self) -> str:
        """Name by which users select the encoder."""
        return self.spec.name

    def describe(self) -> dict[str, Any]:
        """Return all fields as one JSON object, with those of the encoder's spec at its top level.

        `agreement` is called `cosine_to_float32`: mean and minimum cosine to float32 vectors, None if not measured. Of
        an `upstream`, only what users may know is returned. See `UpstreamSpec.describe`.
        """
        fields = asdict(self)
        spec, agreement, _ = fields.pop("spec"), fields.pop("agreement"), fields.pop("window_tokens")
        if self.spec.upstream is not None:
            spec["upstream"] = self.spec.upstream.describe()
        described: dict[str, Any] = spec | fields | {"cosine_to_float32": agreement}
        return described

    def find_prompt(self, prompt_name: str | None) -> str | None:
        """Return the text of a prompt, by default that of the default prompt.

        The rules are those of `Encoder.prompt`.
        """
        return find_prompt(self.name, self.prompts, self.default_prompt_name if prompt_name is None else prompt_name)

    def find_side_prompt(self, side: SearchSide) -> str | None:
        """Return the name of the prompt for the texts on a side of a search.

        The rules are those of the function of this name.
        """
        return find_side_prompt(self.prompts, side, self.default_prompt_name)

    def choose_prompt(self, prompt_name: str | None, side: SearchSide | None) -> str | None:
        """Return the name of the prompt for the texts of a request, or None for the encoder's default.

        sentence-transformers gives every model empty prompts `query` and `document`. A request that names one of these
        means that side of a search, whose prompt may have another name, such as `passage`.

        Args:
            prompt_name: prompt that the request names, or None.
            side: side of a search that the request names, or None.
        """
        if prompt_name in ("query", "document") and self.prompts.get(prompt_name) == "":
            if prompt_name in (self.spec.prompts or {}):
                return prompt_name
            return self.find_side_prompt("query" if prompt_name == "query" else "document")
        return prompt_name if prompt_name is not None or side is None else self.find_side_prompt(side)
