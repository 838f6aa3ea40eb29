"""Errors of the offline work.

TrainingError (Exception)
├── EncoderError     a model that cannot be loaded, an unknown prompt
│   └── TooLongError   a text with more tokens than the encoder reads, where cutting was not allowed
├── SourceError      a file that is missing, malformed, empty, or holds something else
│   ├── AccessError    a source that cannot be got at: a package, a permission or the network is missing
│   ├── EmptyError     a file without a row
│   └── OutsideSourceError   a path, or a link, that leads out of the folder that may be read
├── FitError         a fit that cannot start: too few distinct rows, a gate nobody knows
├── EngineError      workers that cannot be reached, are unlike this process, or keep dying
├── EvaluationError  an evaluation that cannot start: no suite, no data set that can be read
│   └── DataSetError   a data set that cannot be used; the others go on without it
├── JobError         a training job that cannot be done as described
├── AdviceError      a source that there is nothing to say about
└── ExportError      a chain that cannot be written for other software, or comes out different there
"""


class TrainingError(Exception):
    """Anything the user of an offline job must know; the message says what would be right."""


class EncoderError(TrainingError):
    """The encoder cannot do what was asked."""


class TooLongError(EncoderError):
    """A text has more tokens than the encoder reads and must not be cut."""


class SourceError(TrainingError):
    """The source cannot be read."""


class AccessError(SourceError):
    """The source cannot be got at: a package, a permission or the network is missing. No file is to blame."""


class OutsideSourceError(SourceError):
    """A path, or a link below it, leads out of the folder that may be read."""


class EmptyError(SourceError):
    """The file holds no row."""


class FitError(TrainingError):
    """The fit cannot be done as described."""


class EngineError(TrainingError):
    """The workers of an engine cannot do the work."""


class EvaluationError(TrainingError):
    """The evaluation cannot be done as described."""


class DataSetError(EvaluationError):
    """The data set cannot be used: what is wrong, with file and line."""


class JobError(TrainingError):
    """The training job cannot be done as described."""


class AdviceError(TrainingError):
    """A source that there is nothing to say about: too few distinct rows, or texts without an encoder."""


class ExportError(TrainingError):
    """The chain cannot be exported as asked."""
