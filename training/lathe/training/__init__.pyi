"""Where the names of the package come from: `__init__` reads this, and so do type checkers."""

from .deciding.advise import Advice
from .encoder.encoder import Encoder
from .encoder.spec import EncoderSpec
from .errors import TrainingError
from .notebook import FitResult, Results, advise, evaluate, fit, load_encoder
from .sources.source import Source, open_source

__all__ = [
    "Advice",
    "Encoder",
    "EncoderSpec",
    "FitResult",
    "Results",
    "Source",
    "TrainingError",
    "advise",
    "evaluate",
    "fit",
    "load_encoder",
    "open_source",
]
