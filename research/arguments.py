"""Arguments that experiments on labelled data sets share, and the evaluation that they ask for."""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.evaluation.encoders import RequestedEncoder
from lathe.training.evaluation.suites import Suite, open_suite
from research.encoders import BAG_OF_WORDS, RequestedBagOfWords, list_variants
from research.fitted_methods.evaluation import FittedRequest

Kind = TypeVar("Kind", bound=FittedRequest)

MAX_PROCESSES = 8
"""Maximum default number of scoring processes; each holds mteb and its libraries, about a gigabyte."""


def evaluation_parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser of the arguments of an evaluation, with a module's docstring as its help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", required=True, help="folder of data sets, YAML file, mteb:TASK,… or a shipped suite")
    parser.add_argument("--out", required=True, type=Path, help="folder of vectors, scores and reports; a run resumes")
    parser.add_argument(
        "--encoder",
        default="",
        help="E,…: folders or hub ids; NAME:layers or NAME:layer3-cls for layers of one under another pooling; "
        "bag-of-words. Without it, those of the suite, else the default encoder",
    )
    parser.add_argument("--corpus", default="pydoc:", help="source of sentences to fit on")
    parser.add_argument("--limit", type=int, help="maximum rows of a data set, the same each time")
    parser.add_argument("--processes", type=int, default=min(os.cpu_count() or 1, MAX_PROCESSES))
    parser.add_argument("--device", help="torch device of the encoders")
    parser.add_argument("--dtype", default="float32", help="dtype of the encoders")
    return parser


def build_request(arguments: argparse.Namespace, kind: type[Kind] = FittedRequest, **more: Any) -> Kind:  # type: ignore[assignment]
    """Build the request of an evaluation from parsed arguments.

    `more` are further fields of `kind`.

    Raises:
        EvaluationError: if there is no such suite.
    """
    suite = open_suite(arguments.suite)
    return kind(
        suite=suite,
        encoders=list_encoders(arguments.encoder, suite, arguments.dtype),
        out=arguments.out,
        corpus=arguments.corpus,
        limit=arguments.limit,
        processes=arguments.processes,
        device=arguments.device,
        **more,
    )


def list_encoders(written: str, suite: Suite, dtype: Any) -> list[RequestedEncoder]:
    """Return the encoders that are named, else those of the suite, else the default encoder."""
    names = [name.strip() for name in written.split(",") if name.strip()]
    if not names and suite.encoders:
        return [replace(one, spec=replace(find_spec(one.spec.model), dtype=dtype)) for one in suite.encoders]
    wanted = dict.fromkeys(names or [DEFAULT_ENCODER.name])
    return [encoder for name in wanted for encoder in request_encoders(name, dtype)]


def request_encoders(written: str, dtype: Any) -> list[RequestedEncoder]:
    """Return the encoders for `NAME[:VARIANT]`, or the bag of words.

    A variant may name all layers.
    """
    if written == BAG_OF_WORDS:
        return [RequestedBagOfWords()]
    name, _, variant = written.partition(":")
    spec = replace(find_spec(name), dtype=dtype)
    return list_variants(spec, variant) if variant else [RequestedEncoder(spec)]


def find_spec(name: str | None) -> EncoderSpec:
    """Return the spec of a model's folder or hub id.

    The default encoder for None or its name.
    """
    if name is None or name == DEFAULT_ENCODER.name:
        return DEFAULT_ENCODER
    return EncoderSpec(name=name.rstrip("/").rpartition("/")[2], model=name)
