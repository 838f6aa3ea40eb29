"""Requests of fits: the command, the body of `POST /fit-transform` and the job are the same objects.

Gates are bounds on a certificate's metrics that a fit must satisfy. No library of the fit itself is imported here,
because the command line reads this module for its help.
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
"""Kind of the step that a budget of bytes adds."""

MAX_BYTES = 16_384
"""Maximum budget of bytes for the codes of a vector."""

MIN_DISTINCT_ROWS = 4
"""Minimum number of distinct rows of a source, so that some can be fitted on and some held out."""

ROW_FIELDS = ("source", "queries", "targets")
"""Fields with rows."""

PAIR_FIELDS = ("pairs", "test_pairs")
"""Fields with pairs of a query and a relevant document."""


CLICK_FIELDS = ("position", "rank", "clicked_position")
"""Fields by which a log of clicks is told from judged pairs."""

CLICKS_REFUSED = (
    "What was clicked had been shown there by the ranking that is to be improved, so such clicks call that ranking "
    "right. Judge a sample of queries, or take clicks on results in random order, and leave the position out"
)
"""Why a log of clicks is refused: position bias (Joachims et al., arXiv 1608.04468)."""

RELEVANCE_FIELDS = ("relevance", "score", "label", "grade")
"""Fields that say how relevant the document of a pair is to its query; a pair has one of them at most."""

RELEVANT_LABELS = ("relevant", "positive", "yes", "true")
IRRELEVANT_LABELS = ("irrelevant", "not relevant", "non-relevant", "negative", "no", "false")


def parse_relevance(value: Any, field: str) -> float:
    """Parse how relevant a document was judged, and return a grade of 0 or more.

    0 means that the document is not relevant.

    Args:
        value: a whole number (negative ones mean 0, as in TREC's judgements), true or false, one of `RELEVANT_LABELS`
            or `IRRELEVANT_LABELS`, or a text of such a number.
        field: name of the field, for messages.

    Raises:
        ValueError: for anything else. A fraction may be the score of a model, whose threshold nobody has said.
    """
    if isinstance(value, str):
        label = value.strip().lower().replace("_", " ")
        if label in (*RELEVANT_LABELS, *IRRELEVANT_LABELS):
            return float(label in RELEVANT_LABELS)
        value = int(label) if label.lstrip("-").isdecimal() else value
    # NaN and inf are refused too: both give NaN when divided, which equals nothing.
    if not isinstance(value, bool | int | float) or value != value // 1:
        raise ValueError(
            f"{field} is {value!r}: write a whole number, of which 0 means not relevant, true or false, or one of "
            f"{', '.join((*RELEVANT_LABELS, *IRRELEVANT_LABELS))}"
        )
    return max(float(value), 0.0)


def find_relevance_field(names: Collection[str]) -> str | None:
    """Return the name of the field that says how relevant a pair's document is, or None if the pair has none.

    The name is one of `RELEVANCE_FIELDS`.

    Raises:
        ValueError: if there are two, as where a pair has both a model's score and a person's label.
    """
    fields = [field for field in RELEVANCE_FIELDS if field in names]
    if len(fields) > 1:
        raise ValueError(f"a pair has {fields[0]} and {fields[1]}: leave out the one that is not a judgement")
    return fields[0] if fields else None


class RowSource(JsonObject):
    """Source of rows, of which exactly one of the three fields is set.

    Attributes:
        texts: texts, sent with the request.
        vectors: vectors `(n, d)`, sent with the request.
        path: a source as `lathe fit --source` reads it; a string in place of the object means the path.
    """

    model_config = ConfigDict(frozen=True)

    texts: list[str] | None = None
    vectors: Annotated[
        list[Any] | None, Field(json_schema_extra={"items": {"type": "array", "items": {"type": "number"}}})
    ] = None
    path: str | None = None

    @model_validator(mode="before")
    @classmethod
    def read_path(cls, content: Any) -> Any:
        """Return the content as an object: a string becomes `{"path": string}`.

        Raises `PydanticCustomError` for other types.
        """
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
        """Path of the source, to which rows sent with the request must have been written before.

        Raises:
            FitError: if they were not.
        """
        if self.path is None:
            raise FitError("rows that are sent with a request must be written to a file before they are read")
        return self.path


class QueryPair(JsonObject):
    """A query and a document that was judged for it.

    Attributes:
        query: text of the query.
        document: text of the document.
        relevance: grade of the document, 0 for one that is not relevant, as `parse_relevance` reads it; may be called
            `score`, `label` or `grade`.
    """

    model_config = ConfigDict(frozen=True)

    query: Annotated[str, Field(min_length=1)]
    document: Annotated[str, Field(min_length=1)]
    relevance: float = 1.0

    @model_validator(mode="before")
    @classmethod
    def read_relevance(cls, content: Any) -> Any:
        """Return the content with the grade under the name `relevance`, whatever field it was sent in.

        This runs before unknown fields are refused.
        """
        if isinstance(content, dict) and (field := find_relevance_field(content)) is not None:
            rest = {name: value for name, value in content.items() if name != field}
            content = rest | {"relevance": parse_relevance(content[field], field)}
        return content

    @classmethod
    def advise(cls, unknown: str) -> str:
        """Return the hint for an unknown field.

        It says why clicks are refused if the field belongs to a log of clicks, else it is the general hint.
        """
        return CLICKS_REFUSED if unknown in CLICK_FIELDS else super().advise(unknown)


Pairs = list[QueryPair] | str
"""Pairs sent with the request, or a file of pairs, as `read_pairs` reads it."""


class SourcedRequest(JsonObject):
    """A request with sources of rows or pairs, whose data may be sent with it."""

    @property
    def paths(self) -> dict[str, str]:
        """Paths of the request's sources by field, without sources whose data were sent with the request."""
        sources = {field: getattr(self, field, None) for field in (*ROW_FIELDS, *PAIR_FIELDS)}
        paths = {field: source.path if isinstance(source, RowSource) else source for field, source in sources.items()}
        return {field: path for field, path in paths.items() if isinstance(path, str)}

    def with_paths(self, paths: Mapping[str, str]) -> Self:
        """Return a copy of the request with these paths as the sources of the given fields."""
        return self.model_copy(
            update={field: RowSource(path=path) if field in ROW_FIELDS else path for field, path in paths.items()}
        )


class NewFit(SourcedRequest):
    """A fit of a chain of transforms.

    Attributes:
        name: name of the chain; the fit adds its next version.
        source: rows to fit on: an object with `texts`, `vectors` or `path`, or the path alone.
        steps: specs of the steps in order, or `{"query": […], "document": […]}` with other steps for queries than for
            documents; None for codes alone.
        normalize: whether outputs are unit vectors.
        bytes: budget of a vector in bytes: codes of that size follow the steps, and their weighting and codebooks are
            searched; None for no such codes.
        encoder: name of the encoder of the rows; None for the default, and for vectors without an encoder.
        prompt_name: name of the encoder's prompt for the source's texts; None for that of documents, if it has one.
        gates: minimum value by certificate key, where dots separate nested keys; a maximum for `positional_stress`,
            `mean_norm.after` and `bytes_per_vector.after`.
        promote: whether the new version becomes live if its gates hold; None promotes it only if no version is live.
        serve_dimensions: whether requests for the chain's dimensions get it once it is live.
        transform: whether the source's vectors are wanted as the new version transforms them.
        seed: seed of the split into fitted and held-out rows.
        out_of_domain: sources of out-of-domain texts by name, to certify on besides `pydoc:`.
        queries: source of queries that will search the vectors, to weight codes by; None weights by the rows.
        pairs: queries with a relevant document each, that steps learn from; a part of them certifies the chain if there
            are not test pairs. A list of objects with `query` and `document`, or the path of a file of them.
        test_pairs: queries with a relevant document each, to certify the chain with: a list of objects with `query` and
            `document`, or the path of a file of them.
        targets: the target of each row, for steps fitted on targets.
        target_encoder: name of the encoder whose vectors of the same texts are the targets instead.
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
        """Build the request's chain of transforms, not fitted yet.

        With a budget of bytes, byte codes of that size come last.

        Raises:
            StepError: if a step has no such kind or parameter, or the steps do not fit together.
        """
        from lathe.transforms.chain import Chain, build_steps

        codes = [] if self.bytes is None else [{"kind": CODES, "bytes": self.bytes}]

        # An object of two sides is one step, which codes may follow as they follow a list.
        steps = [step.spec() for step in build_steps(self.steps)] if isinstance(self.steps, dict) else self.steps
        return Chain(build_steps([*(steps or ()), *codes]), self.normalize)

    def check(self) -> "Chain":
        """Check the request for errors that can be found before any row is read, and return its unfitted chain.

        Raises:
            StepError: as `build_chain`.
            FitError: for an unknown gate, for targets, pairs or queries that no step is fitted on, or for steps without
                what they are fitted on.
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
        """Check that the request has pairs to fit on exactly if its steps need them, and that its test pairs differ.

        Raises `FitError` if not. `kinds` lists the kinds of the steps that are fitted on pairs.
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
"""Metrics of a certificate that exist for the whole, for each out-of-domain corpus and for each size."""

ALIGNMENT = {"alignment.cosine", "alignment.recall_at_10"}
"""Metrics of a certificate of a fit on pairs."""

RELEVANCE = {f"relevance.{measure}.{side}" for measure in ("ndcg_at_10", "recall_at_10") for side in ("gain", "after")}
"""Metrics of a certificate with pairs of query and document."""

UPPER_BOUNDS = {"positional_stress", "mean_norm.after", "bytes_per_vector.after"}
"""Keys whose gate is a maximum; all others are a minimum."""


def check_gate_names(gates: Mapping[str, float]) -> None:
    """Check that each gate, a limit on a metric of the certificate, names a metric that certificates have.

    Raises `FitError` for any other key.
    """
    for key in gates:
        place, _, measure = key.rpartition(".")
        of_corpus = measure in QUALITIES and (not place or place.startswith(("out_of_domain.", "sizes.")))
        if not of_corpus and key not in {"isoscore.after", *ALIGNMENT, *RELEVANCE, *UPPER_BOUNDS}:
            raise FitError(
                f"there is no gate {key!r}; there are {', '.join(sorted(QUALITIES))}, isoscore.after, "
                "mean_norm.after, bytes_per_vector.after, out_of_domain.CORPUS.MEASURE and relevance.ndcg_at_10.gain"
            )


def list_failed_gates(gates: Mapping[str, float], certificate: Mapping[str, Any]) -> list[str]:
    """Return the keys of the gates whose metric in the certificate misses the limit or was not measured."""
    return [
        gate for gate, limit in gates.items() if not satisfies_gate(gate, limit, read_gate_value(gate, certificate))
    ]


def read_gate_value(gate: str, certificate: Mapping[str, Any]) -> float | None:
    """Return the value of the metric that a gate names in a certificate, or None if it was not measured."""
    value = _look_up(gate.split("."), certificate)
    return value if isinstance(value, int | float) else None


def _look_up(parts: Sequence[str], content: Any) -> Any:
    """Return the value in nested mappings at a dotted path, given as its parts, or None if there is none.

    Keys may contain dots themselves.
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
    """Return whether the value of a metric keeps the limit of its gate.

    The limit is a maximum or a minimum, depending on the metric. None and NaN never keep it.
    """
    return value is not None and (value <= limit if is_upper_bound(gate) else value >= limit)


def is_upper_bound(gate: str) -> bool:
    """Return whether the limit of a gate is a maximum of its metric, not a minimum."""
    return gate in UPPER_BOUNDS or gate.rpartition(".")[2] == "positional_stress"
