"""Request of a training, one class for the command with a name, the body of `POST /train` and the job.

No training library is imported here, because the command line imports this module for its help.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field

from lathe.training.errors import JobError
from lathe.training.finetuning.regularizers.registry import METHODS
from lathe.training.json_object import JsonObject
from lathe.training.settings import MAX_ENTRIES, EncoderName
from lathe.transforms.suggestions import find_similar

if TYPE_CHECKING:
    from lathe.training.finetuning.job import TrainingJob

GATE = re.compile(
    r"(?:relevance|out_of_domain)\..+\.(?:ndcg_at_10|recall_at_10)\.(?:before|after|gain)|tasks\..+\.(?:before|after|gain)"
)
"""Pattern of the numbers in a trained encoder's certificate that a gate may name."""


class NewTraining(JsonObject):
    """A training whose result is the next version of an encoder.

    Attributes:
        name: name of the encoder.
        method: training method: `reze`, `distill`, `pft` or `ft`.
        job: settings of the training, as `lathe train` reads them from YAML.
        gates: minimum value by certificate key, such as `relevance.DATASET.ndcg_at_10.gain`.
        promote: whether the new version becomes live if its gates hold; None promotes it only if no version is live.
    """

    model_config = ConfigDict(
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "name": "support",
                    "method": "reze",
                    "job": {"encoder": "all-MiniLM-L6-v2", "sources": [{"folder": "support"}]},
                    "gates": {"relevance.support.ndcg_at_10.gain": 0.01},
                    "promote": True,
                }
            ]
        },
    )

    name: EncoderName
    method: str
    job: dict[str, Any]
    gates: Annotated[dict[str, float], Field(max_length=MAX_ENTRIES)] = {}
    promote: bool | None = None

    def check(self) -> "TrainingJob":
        """Raise `JobError` for errors that can be found without reading data, and return the settings of the job.

        Raises:
            JobError: for an unknown method, a wrong setting of the job, or an unknown gate.
        """
        from lathe.training.finetuning.job import TrainingJob, parse_settings

        if self.method not in METHODS:
            similar = find_similar(self.method, METHODS)
            suggestion = f"did you mean {similar}? " if similar else ""
            raise JobError(f"there is no method {self.method[:40]!r}; {suggestion}there are {', '.join(METHODS)}")
        check_encoder_gates(self.gates)
        return parse_settings(self.job, TrainingJob, "job")


def check_encoder_gates(gates: Mapping[str, float]) -> None:
    """Raise `JobError` if a gate does not name a number that certificates of trained encoders have."""
    for gate in gates:
        if not GATE.fullmatch(gate):
            raise JobError(
                f"there is no gate {gate!r}; there are relevance.DATASET.MEASURE.gain and "
                "out_of_domain.CORPUS.MEASURE.gain, where MEASURE is ndcg_at_10 or recall_at_10, and tasks.TARGET.gain "
                "(or .after, .before for the measures themselves)"
            )
