"""The classes of workers that take jobs from Redis."""

from typing import Literal

WorkerClass = Literal["jobs", "trainings"]
"""Which jobs a worker takes. Trainings of encoders take long, so they have their own workers, and fits do not wait."""

COMMANDS: dict[WorkerClass, str] = {"jobs": "lathe worker", "trainings": "lathe worker --training"}
"""Command that starts a worker of each class."""
