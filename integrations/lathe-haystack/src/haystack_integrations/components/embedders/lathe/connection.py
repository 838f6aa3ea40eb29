"""What both components share: settings of the server, the embedder that calls it, and conversion to dictionaries."""

import inspect
from typing import Any, Self

from haystack import default_from_dict, default_to_dict
from haystack.utils import Secret
from lathe_client import SearchEmbedder

DEFAULT_KEY = Secret.from_env_var("LATHE_API_KEY", strict=False)


class ServerComponent:
    """Base of the components. Attributes are the arguments of the subclass's `__init__`, under their names."""

    base_url: str
    api_key: Secret | None
    model: str | None
    chain: str | None
    dimensions: int | None
    prompt_name: str | None
    expected_space_id: str | None
    timeout: float
    max_retries: int
    _embedder: SearchEmbedder | None = None

    def warm_up(self) -> None:
        """Read the key and build the embedder that calls the server, which the first `run` does otherwise."""
        self._get_embedder()

    def to_dict(self) -> dict[str, Any]:
        """Return the component as a dictionary, with the name of the key's environment variable in place of the key."""
        names = inspect.signature(type(self).__init__).parameters
        return default_to_dict(self, **{name: getattr(self, name) for name in names if name != "self"})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Return the component that a dictionary of `to_dict` describes."""
        return default_from_dict(cls, data)

    def _list_own_settings(self) -> dict[str, Any]:
        """Return the arguments of `SearchEmbedder` that the components do not share. Subclasses define it."""
        raise TypeError(f"{type(self).__name__} must define _list_own_settings")

    def _get_embedder(self) -> SearchEmbedder:
        """Return the embedder that calls the server, which the first call builds."""
        if self._embedder is None:
            self._embedder = SearchEmbedder(
                url=self.base_url,
                api_key=self.api_key.resolve_value() if self.api_key else None,
                model=self.model,
                chain=self.chain,
                dimensions=self.dimensions,
                space_id=self.expected_space_id,
                timeout=self.timeout,
                max_retries=self.max_retries,
                **self._list_own_settings(),
            )
        return self._embedder
