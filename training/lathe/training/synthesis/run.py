"""Run of a synthesis job, from its settings to pairs that can be trained on.

OUT/
├── job.json          settings that the answers depend on, to resume only the same job
├── templates/        the prompt templates used
├── answers/          every answer with its provenance         answer_log.py
├── pairs.jsonl       an anchor and a positive on each line    ┐
├── rejected.jsonl    rejected texts with reasons              │ report.py
└── report.json       statistics                               ┘
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from lathe.training.errors import JobError
from lathe.training.journal import find_changed_setting
from lathe.training.synthesis.answer_log import AnswerLog
from lathe.training.synthesis.chat import Endpoint
from lathe.training.synthesis.held_out import HeldOutIndex, read_held_out_texts
from lathe.training.synthesis.job import STAGES, StageName, SynthesisJob
from lathe.training.synthesis.pipeline import Pipeline, Seed, read_seeds
from lathe.training.synthesis.report import SynthesisOutcome, write_outcome
from lathe.training.synthesis.sender import Sender
from lathe.training.synthesis.templates import Prompt, read_templates
from lathe.training.workspace import digest, lock_folder
from lathe.transforms.files import replace_synced
from lathe.transforms.progress import Progress

JOB = "job.json"
"""Name of the file with the settings that the answers of a folder depend on."""


@dataclass(frozen=True)
class PreparedJob:
    """A job with the templates, seeds and test sets that were read from disk.

    Attributes:
        job: settings of the job.
        prompts: prompt template by stage.
        seeds: questions with answers to start from.
        held_out: index of the test texts that must not occur.
    """

    job: SynthesisJob
    prompts: Mapping[StageName, Prompt]
    seeds: list[Seed]
    held_out: HeldOutIndex

    def list_dependencies(self) -> dict[str, Any]:
        """Return the settings that the answers in an output folder depend on, as a JSON-serializable dict.

        These are digests of seeds and templates, the numbers of personas and queries, and the settings of the stages. A
        run may only be resumed with equal settings. Limits, prices, the endpoint's address and test sets are left out,
        so they may change between runs.
        """
        stages = {
            name: {
                "model": self.job.model_of(name),
                "parameters": self.job.parameters_of(name),
                "characters": [self.job.stages[name].min_characters, self.job.stages[name].max_characters],
            }
            for name in STAGES
        }
        return {
            "seeds": digest([seed.key for seed in self.seeds]),
            "templates": {name: prompt.hash for name, prompt in self.prompts.items()},
            "personas": self.job.personas,
            "queries": self.job.queries,
            "stages": stages,
        }


def prepare_job(job: SynthesisJob) -> PreparedJob:
    """Read and check the prompt templates, seeds and test sets of a job.

    Raises:
        JobError: if templates, seeds or test sets cannot be used.
        DataSetError: if the file of seeds is not JSON lines.
    """
    prompts = read_templates(job)
    seeds = read_seeds(job.seeds)
    return PreparedJob(job, prompts, seeds, read_held_out_texts(job.test_sets, job.similarity, job.shared_words))


def run_synthesis(prepared: PreparedJob, endpoint: Endpoint, out: Path, on_progress: Progress) -> SynthesisOutcome:
    """Run or resume a synthesis job in the folder `out`. If the endpoint fails, results are written before it raises.

    Templates, settings, answers and results are written. An error of the endpoint is raised after the results of the
    answers so far are written.

    Raises:
        JobError: if the endpoint fails, the folder holds answers of another job, or another run uses the folder.
    """
    busy = JobError(f"another run is writing to {out}; wait for its end, or name another folder with --out")
    with lock_folder(out, busy):
        _check_same_job(prepared, out)
        # Written before the first call, so that a killed run can be resumed.
        (out / "templates").mkdir(exist_ok=True)
        for name, prompt in prepared.prompts.items():
            replace_synced(out / "templates" / f"{name}.txt", prompt.text.encode())
        replace_synced(out / JOB, orjson.dumps(prepared.list_dependencies(), option=orjson.OPT_INDENT_2))

        log, begun = AnswerLog(out / "answers"), time.monotonic()
        pipeline = Pipeline(prepared.job, prepared.prompts, prepared.seeds, prepared.held_out, log)
        sender = asyncio.run(_ask_all(pipeline, endpoint, prepared.job, log, on_progress))
        outcome = SynthesisOutcome(prepared.job, pipeline, log, sender, endpoint, time.monotonic() - begun)
        write_outcome(outcome, out)  # the answers so far give pairs, however the run ended
        if sender.error is not None:
            raise sender.error

        return outcome


async def _ask_all(
    pipeline: Pipeline, endpoint: Endpoint, job: SynthesisJob, log: AnswerLog, on_progress: Progress
) -> Sender:
    async with Sender(endpoint, log, job, on_progress) as sender:
        for stage, calls in pipeline.stages():
            await sender.send_calls(stage, calls)
        return sender


def _check_same_job(prepared: PreparedJob, out: Path) -> None:
    """Raise `JobError` if a folder holds answers that were made with other settings than those of this job."""
    if not any((out / "answers").glob("*.jsonl")):
        return
    if changed := find_changed_setting(out / JOB, prepared.list_dependencies()):
        name = changed.partition(".")[0]
        raise JobError(f"{out} holds answers that were made with other {name}; name another folder with --out")
