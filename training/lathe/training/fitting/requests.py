"""Requests of fits, which are the arguments of a command, the body of `POST /fit-transform` and a job.

Gates are bounds on a certificate's metrics that a fit must satisfy. No numerical library is imported here, because the
command line reads this module for its help.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from lathe.training.errors import FitError
from lathe.training.json_object import JsonObject
from lathe.training.settings import MAX_ENTRIES, BadShards, ChainName

if TYPE_CHECKING:
    from lathe.transforms.chain import Chain


CODES = "codes"
"""Kind of the step that a budget of bytes adds: byte codes."""

MAX_BYTES = 16_384
"""Maximum budget of bytes for the byte code of a vector."""

MIN_DISTINCT_ROWS = 4
"""Minimum number of distinct rows of a source, so that some can be fitted on and some held out."""

ROW_FIELDS = ("source", "queries", "targets")
"""Fields with rows."""

PAIR_FIELDS = ("pairs", "test_pairs")
"""Fields with pairs of a query and a relevant document."""


CLICK_FIELDS = ("position", "rank", "clicked_position")
"""Fields by which a log of clicks is recognized."""

CLICKS_REFUSED = (
    "Users click results because the ranking that is to be improved shows them near the top (position bias), so clicks "
    "favour that ranking. Judge a sample of queries, or use clicks on results in random order, without the position"
)
"""Why a log of clicks is refused: position bias (Joachims et al., arXiv 1608.04468)."""

RELEVANCE_FIELDS = ("relevance", "score", "label", "grade")
"""Fields that may hold the relevance of a pair's document. A pair has at most one of these fields."""

RELEVANT_LABELS = ("relevant", "positive", "yes", "true")
IRRELEVANT_LABELS = ("irrelevant", "not relevant", "non-relevant", "negative", "no", "false")


def parse_relevance(value: Any, field: str) -> float:
    """Parse a relevance judgement (whole number, boolean or label) to a number. Other values raise `ValueError`.

    0 means not relevant, and negative numbers become 0, as in TREC's judgements. Labels are `RELEVANT_LABELS` (1) and
    `IRRELEVANT_LABELS` (0). Whole numbers may be written as text. A fraction is refused, because it may be the score of
    a model, for which no threshold is known.

    Args:
        value: the judgement.
        field: name of the field, for messages.
    """
    if isinstance(value, str):
        label = value.strip().lower().replace("_", " ")
        if label in (*RELEVANT_LABELS, *IRRELEVANT_LABELS):
            return float(label in RELEVANT_LABELS)
        value = int(label) if label.lstrip("-").isdecimal() else value
    # NaN and inf are refused too: both give NaN when divided, which equals nothing.
    if not isinstance(value, bool | int | float) or value != value // 1:
        raise ValueError(
            f"{field} is {value!r}: write a whole number (0 means not relevant), true or false, or one of "
            f"{', '.join((*RELEVANT_LABELS, *IRRELEVANT_LABELS))}"
        )
    return max(float(value), 0.0)


def find_relevance_field(names: Collection[str]) -> str | None:
    """Find the field among the names that holds the relevance of a pair's document, or return None.

    The fields are `RELEVANCE_FIELDS`. Two of them, such as a model's score and a person's label, raise `ValueError`.
    """
    fields = [field for field in RELEVANCE_FIELDS if field in names]
    if len(fields) > 1:
        raise ValueError(f"a pair has {fields[0]} and {fields[1]}: leave out the field that is not a judgement")
    return fields[0] if fields else None


class RowSource(JsonObject):
    """Source of rows. Exactly one of the three fields is set.

    Attributes:
        texts: texts that are sent with the request.
        vectors: vectors `(n, d)` that are sent with the request.
        path: a source as for `lathe fit --source`. A string in place of the object means the path.
    """

    model_config = ConfigDict(frozen=True)

    texts: list[str] | None = None
    vectors: Annotated[
        list[Any] | None, Field(json_schema_extra={"items": {"type": "array", "items": {"type": "number"}}})
    ] = None
    path: str | None = None

    @model_validator(mode="before")
    @classmethod
    def wrap_path(cls, content: Any) -> Any:
        """Wrap a string as `{"path": string}`, and return objects unchanged. Raise `PydanticCustomError` otherwise."""
        if isinstance(content, str):
            return {"path": content}
        if not isinstance(content, dict | RowSource):
            raise PydanticCustomError("rows_type", "write an object with texts, vectors or path, or the path alone")
        return content

    @model_validator(mode="after")
    def _check_exactly_one(self) -> "RowSource":
        names = [name for name in ("texts", "vectors", "path") if getattr(self, name) is not None]
        if len(names) != 1:
            raise ValueError(f"give exactly one of texts, vectors and path, got {', '.join(names) or 'none'}")
        return self

    @property
    def location(self) -> str:
        """Path of the source. Rows that were sent with the request must have been written to a file before.

        Raises:
            FitError: if the source has no path.
        """
        if self.path is None:
            raise FitError("rows that are sent with a request must be written to a file before they are read")
        return self.path


class QueryPair(JsonObject):
    """A query and a document with a relevance judgement.

    Attributes:
        query: text of the query.
        document: text of the document.
        relevance: relevance of the document to the query, 0 if it is not relevant; see `parse_relevance`. The field may
            also be called `score`, `label` or `grade`.
    """

    model_config = ConfigDict(frozen=True)

    query: Annotated[str, Field(min_length=1)]
    document: Annotated[str, Field(min_length=1)]
    relevance: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def parse_relevance_field(cls, content: Any) -> Any:
        """Parse the relevance field of a pair, whatever its name in `RELEVANCE_FIELDS`, and rename it to `relevance`.

        This runs before unknown fields are refused. Raises `ValueError` for two such fields or a wrong value.
        """
        if isinstance(content, dict) and (field := find_relevance_field(content)) is not None:
            rest = {name: value for name, value in content.items() if name != field}
            content = rest | {"relevance": parse_relevance(content[field], field)}
        return content

    @classmethod
    def advise(cls, unknown: str) -> str:
        """Return a hint about an unknown field. For a field of a log of clicks, it says why clicks are refused."""
        return CLICKS_REFUSED if unknown in CLICK_FIELDS else super().advise(unknown)


Pairs = list[QueryPair] | str
"""Pairs that are sent with the request, or the path of a file of pairs, see `read_pairs`."""


class SourcedRequest(JsonObject):
    """A request with sources of rows or pairs: data that are sent with the request, or paths."""

    @property
    def paths(self) -> dict[str, str]:
        """Paths of the request's sources by field. Sources with data in the request have no path and are left out."""
        sources = {field: getattr(self, field, None) for field in (*ROW_FIELDS, *PAIR_FIELDS)}
        paths = {field: source.path if isinstance(source, RowSource) else source for field, source in sources.items()}
        return {field: path for field, path in paths.items() if isinstance(path, str)}

    def with_paths(self, paths: Mapping[str, str]) -> Self:
        """Return a copy of the request in which the sources of the given fields are these paths."""
        return self.model_copy(
            update={field: RowSource(path=path) if field in ROW_FIELDS else path for field, path in paths.items()}
        )


class NewFit(SourcedRequest):
    """A fit of a chain of transforms.

    Attributes:
        name: name of the chain, which gets a new version.
        source: rows to fit on: an object with `texts`, `vectors` or `path`, or the path alone.
        steps: specs of the steps in order, or `{"query": […], "document": […]}` with different steps for queries and
            documents; None for codes alone.
        normalize: whether outputs are unit vectors.
        bytes: budget of bytes per vector: byte codes of that size follow the steps, and the best weighting and
            codebooks are searched for; None for no byte codes.
        encoder: name of the encoder of the rows; None for the default, and for vectors without an encoder.
        prompt_name: name of the encoder's prompt for the source's texts; None for the prompt for documents, if any.
        gates: minimum value by certificate key, where dots separate nested keys; a maximum for `positional_stress`,
            `mean_norm.after` and `bytes_per_vector.after`.
        promote: whether the new version becomes live if its gates hold; None promotes it only if no version is live.
        serve_dimensions: whether requests for the chain's dimensions get it once it is live.
        transform: whether the fit also returns the source's vectors, transformed by the new version.
        seed: seed of the split into fitted and held-out rows.
        out_of_domain: sources of out-of-domain texts by name, to certify on in addition to `pydoc:`.
        queries: source of queries that will search the vectors, to weight codes by; None weights by the rows.
        pairs: pairs of a query and a relevant document that steps are fitted on; a part of them certifies the chain if
            there are no test pairs. A list of objects with `query` and `document`, or the path of a file.
        test_pairs: pairs of a query and a relevant document to certify the chain with: a list of objects with `query`
            and `document`, or the path of a file.
        targets: target vectors, one for each row, for steps that are fitted on targets.
        target_encoder: name of the encoder whose vectors of the source's texts are the targets.
        bad_shards: what to do about a damaged file: `refuse` stops the fit, `skip` leaves the file out and reports it.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "name": "mine",
                    "source": "articles.parquet#body",
                    "steps": [{"kind": "r2"}, {"kind": "geopres", "dimensions": 128, "nested": True}],
                    "bytes": 48,
                    "normalize": True,
                    "encoder": "all-MiniLM-L6-v2",
                    "prompt_name": "document",
                    "gates": {"recall_at_10": 0.8},
                    "promote": True,
                    "serve_dimensions": True,
                    "transform": True,
                    "seed": 1,
                    "out_of_domain": {"news": "news.jsonl"},
                    "queries": {"texts": ["What is a lathe?"]},
                    "test_pairs": [{"query": "What is a lathe?", "document": "A lathe turns a workpiece."}],
                    "bad_shards": "skip",
                },
                {
                    "name": "bridge",
                    "source": {"path": "texts.jsonl"},
                    "steps": [{"kind": "procrustes"}],
                    "target_encoder": "bge-small-en-v1.5",
                },
                {
                    "name": "bridge",
                    "source": {"path": "new.npy"},
                    "steps": [{"kind": "procrustes"}],
                    "targets": {"path": "old.npy"},
                },
                {
                    "name": "judged",
                    "source": "documents.jsonl",
                    "steps": [{"kind": "query_adapter"}],
                    "pairs": "judged.jsonl",
                },
            ]
        },
    )

    name: ChainName
    source: RowSource
    steps: list[dict[str, Any]] | dict[str, list[dict[str, Any]]] | None = None
    normalize: bool = True
    bytes: Annotated[int | None, Field(ge=1, le=MAX_BYTES)] = None
    encoder: str | None = None
    prompt_name: str | None = None
    gates: Annotated[dict[str, float], Field(max_length=MAX_ENTRIES)] = {}
    promote: bool | None = None
    serve_dimensions: bool = False
    transform: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    out_of_domain: Annotated[dict[str, str], Field(max_length=MAX_ENTRIES)] = {}
    queries: RowSource | None = None
    pairs: Pairs | None = None
    test_pairs: Pairs | None = None
    targets: RowSource | None = None
    target_encoder: str | None = None
    bad_shards: BadShards = "refuse"

    @model_validator(mode="after")
    def _check_steps_or_bytes(self) -> "NewFit":
        if self.steps is None and self.bytes is None:
            raise ValueError("give steps, bytes or both")
        return self

    def build_chain(self) -> "Chain":
        """Build the unfitted chain of transforms of the request. With a budget of bytes, byte codes come last.

        Raises:
            StepError: if a step has an unknown kind or parameter, or the steps cannot follow each other.
        """
        from lathe.transforms.chain import Chain, build_steps

        codes = [] if self.bytes is None else [{"kind": CODES, "bytes": self.bytes}]

        # An object with steps for queries and documents is one step, which codes may follow as they follow a list.
        steps = [step.spec() for step in build_steps(self.steps)] if isinstance(self.steps, dict) else self.steps
        return Chain(build_steps([*(steps or ()), *codes]), self.normalize)

    def check(self) -> "Chain":
        """Check gates, steps, targets, pairs and queries, and build the unfitted chain. Raise `FitError` if one fails.

        Errors that need rows are not found here.

        Raises:
            StepError: as `build_chain`.
            FitError: for an unknown gate, for targets, pairs or queries that no step is fitted on, or if the targets or
                pairs that a step is fitted on are missing.
        """
        check_gate_names(self.gates)
        chain = self.build_chain()
        self._check_targets([step.kind for step in chain.transforms if step.paired])
        self._check_pairs([step.kind for step in chain.transforms if step.takes_pairs])
        if self.queries is not None and not any(getattr(step, "takes_queries", False) for step in chain.transforms):
            raise FitError("no step is fitted on queries; give bytes, or a step such as codes")
        return chain

    def _check_targets(self, kinds: Sequence[str]) -> None:
        if self.targets is not None and self.target_encoder is not None:
            raise FitError("name a source of target vectors or a target encoder, not both")
        has_targets = self.targets is not None or self.target_encoder is not None
        if kinds and not has_targets:
            raise FitError(f"{kinds[0]} is fitted on pairs: name the target encoder, or a source of target vectors")
        if has_targets and not kinds:
            raise FitError("no step is fitted on targets; procrustes, low_rank_affine and contrastive_alignment are")

    def _check_pairs(self, kinds: Sequence[str]) -> None:
        """Raise `FitError` for missing pairs, pairs that no step is fitted on, or test pairs that equal the pairs.

        `kinds` lists the kinds of the steps that are fitted on pairs.
        """
        if kinds and self.pairs is None:
            raise FitError(f"{kinds[0]} is fitted on queries and their relevant documents: name a file of pairs")
        if self.pairs is not None and not kinds:
            raise FitError(
                "no step is fitted on pairs of query and document; query_adapter is. To measure other steps by pairs, "
                "give them as test pairs"
            )
        if self.pairs is not None and self.pairs == self.test_pairs:
            raise FitError(
                "the test pairs are the pairs to fit on: their scores would measure memorization (data leakage)"
            )


QUALITIES = {"local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"}
"""Metrics that a certificate has for the held-out rows, for each out-of-domain corpus and for each size."""

ALIGNMENT = {"alignment.cosine", "alignment.recall_at_10"}
"""Metrics of a certificate of a fit on targets."""

RELEVANCE = {f"relevance.{measure}.{side}" for measure in ("ndcg_at_10", "recall_at_10") for side in ("gain", "after")}
"""Metrics of a certificate with pairs of a query and a relevant document."""

UPPER_BOUNDS = {"positional_stress", "mean_norm.after", "bytes_per_vector.after"}
"""Keys whose gate is a maximum. All other gates are a minimum."""


def check_gate_names(gates: Mapping[str, float]) -> None:
    """Raise `FitError` for a gate whose key is not a metric of certificates. A gate is a limit on such a metric."""
    for key in gates:
        place, _, measure = key.rpartition(".")
        of_corpus = measure in QUALITIES and (not place or place.startswith(("out_of_domain.", "sizes.")))
        if not of_corpus and key not in {"isoscore.after", *ALIGNMENT, *RELEVANCE, *UPPER_BOUNDS}:
            raise FitError(
                f"there is no gate {key!r}; there are {', '.join(sorted(QUALITIES))}, isoscore.after, "
                "mean_norm.after, bytes_per_vector.after, out_of_domain.CORPUS.MEASURE and relevance.ndcg_at_10.gain"
            )


def list_failed_gates(gates: Mapping[str, float], certificate: Mapping[str, Any]) -> list[str]:
    """List the keys of the gates whose metric in the certificate misses the limit or was not measured."""
    return [
        gate for gate, limit in gates.items() if not satisfies_gate(gate, limit, read_gate_value(gate, certificate))
    ]


def read_gate_value(gate: str, certificate: Mapping[str, Any]) -> float | None:
    """Read the value of a gate's metric from a certificate. Returns None if the metric was not measured."""
    value = _look_up(gate.split("."), certificate)
    return value if isinstance(value, int | float) else None


def _look_up(parts: Sequence[str], content: Any) -> Any:
    """Look up the value at a dotted path in nested mappings, or return None. `parts` is the path split at dots.

    Keys of the mappings may contain dots.
    """
    if not parts:
        return content
    if not isinstance(content, Mapping):
        return None

    # The name of a corpus or data set may have dots, so a key may be several parts of the path.
    for count in range(1, len(parts) + 1):
        key = ".".join(parts[:count])
        if key in content and (value := _look_up(parts[count:], content[key])) is not None:
            return value
    return None


def satisfies_gate(gate: str, limit: float, value: float | None) -> bool:
    """Return whether a metric's value is within the limit of its gate, a maximum or a minimum by `is_upper_bound`.

    The values None and NaN are never within the limit.
    """
    return value is not None and (value <= limit if is_upper_bound(gate) else value >= limit)


def is_upper_bound(gate: str) -> bool:
    """Return whether the limit of a gate is a maximum. Otherwise it is a minimum."""
    return gate in UPPER_BOUNDS or gate.rpartition(".")[2] == "positional_stress"
