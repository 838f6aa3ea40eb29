"""Request of an adaptation: the command `lathe adapt`, the body of `POST /adapt` and the job are the same object.

No numerical library is imported here, because the command line reads this module for its help.
"""

from typing import Annotated

from pydantic import ConfigDict, Field

from lathe.training.errors import FitError
from lathe.training.fitting.requests import MAX_BYTES, Pairs, RowSource, SourcedRequest
from lathe.training.names import ChainName
from lathe.training.settings import MAX_ENTRIES

HELD_OUT_SHARE = 0.2
"""Share of the queries to choose by, and again of those to report on."""


class AdaptRequest(SourcedRequest):
    """What is to be adapted, and to which judged searches.

    Attributes:
        source: texts of the documents that are searched.
        pairs: judged searches: queries with a relevant document each, as a list of objects with `query` and `document`,
            or the path of a file of them.
        name: name under which the recommended chain or encoder is published; None publishes nothing.
        folders: folders of labelled data sets, as for `lathe train`, to pre-finetune the encoder on before the judged
            searches.
        test_pairs: other judged searches to report the gain on; None takes two fifths of the queries of
            `pairs`.
        encoder: name of the encoder; None for the default.
        bytes: bytes of a stored vector, as codes that follow each change; None keeps the floats.
        train: whether the encoder may be trained, which changes the vectors of all documents.
        budget: seconds that the whole trial may take, about: trainings get fewer queries, or are left out; None for no
            limit.
        promote: whether the published version becomes live; None promotes it only if no version is live.
        seed: seed of the division of the queries, and of the training.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "source": "documents.jsonl",
                    "pairs": "judged.jsonl",
                    "name": "support",
                    "folders": ["support"],
                    "test_pairs": [{"query": "What is a lathe?", "document": "A lathe turns a workpiece."}],
                    "encoder": "all-MiniLM-L6-v2",
                    "bytes": 48,
                    "train": True,
                    "budget": 3600,
                    "promote": True,
                    "seed": 1,
                }
            ]
        },
    )

    source: RowSource
    pairs: Pairs
    name: ChainName | None = None
    folders: Annotated[list[str], Field(max_length=MAX_ENTRIES)] = []
    test_pairs: Pairs | None = None
    encoder: str | None = None
    bytes: Annotated[int | None, Field(ge=1, le=MAX_BYTES)] = None
    train: bool = True
    budget: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    promote: bool | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def check(self) -> None:
        """Check the request for errors that can be found before any text is read.

        Raises:
            FitError: for vectors as documents, promote without a name, folders without training, or test pairs that
                are the pairs.
        """
        if self.source.vectors is not None:
            raise FitError("documents are texts here: queries are encoded, and a trained encoder encodes all again")
        if self.name is None and self.promote is not None:
            raise FitError("promote is for what is published: give a name")
        if self.folders and not self.train:
            raise FitError("folders are for training the encoder, and train is false: leave one of the two out")
        if self.pairs == self.test_pairs:
            raise FitError(
                "the test pairs are the pairs to learn from: their scores would measure memorization (data leakage)"
            )
