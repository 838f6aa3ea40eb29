"""Encoders of five families, and the sentences that every method is fitted on.

Four of them are folders that sentence-transformers loads; two of these are language models, which are asked for one
word that means the text (PromptEOL, arXiv 2307.16645). What is written around the text becomes a part of the tokenizer,
so that every way of encoding a text includes it. They run in bfloat16, which is three times as fast as float32 on a
processor that has it, and whose vectors have a cosine of .9997 or more with those of float32.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.evaluation.encoders import RequestedEncoder
from research.encoders import list_variants

BEFORE, AFTER = 'This sentence: "', '" means in one word: "'
"""What is written before and after a text that a language model encodes."""

MAX_TOKENS = 256
"""Number of tokens that are read of a text, as many as the default encoder reads."""


@dataclass(frozen=True)
class Family:
    """An encoder of one family, and the layers of it that are measured too.

    Attributes:
        name: name of the folder; of the default encoder its own name.
        prompt: name of the prompt that texts get if a task names none; None for none.
        is_language_model: whether texts are encoded as the word that follows `AFTER`.
        is_static: whether it averages vectors of tokens, however many they are.
        layers: inner layers that are measured too, such as `layer3-mean`; those of a language model are a part of
            their own.
    """

    name: str
    prompt: str | None = None
    is_language_model: bool = False
    is_static: bool = False
    layers: tuple[str, ...] = ()


def name_layers(numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the names of inner layers of a language model, whose last token is read."""
    return tuple(f"layer{number}-lasttoken" for number in numbers)


FAMILIES = (
    Family(DEFAULT_ENCODER.name),
    Family("e5-small", prompt="query", layers=("layer6-mean",)),
    Family("wordllama", is_static=True),
    Family("smollm2-135m", is_language_model=True, layers=name_layers(range(3, 30, 3))),
    Family("gemma3-270m", is_language_model=True, layers=name_layers(range(3, 18, 3))),
)


def request_model(family: Family, folder: Path, work: Path) -> RequestedEncoder:
    """Return the whole model of a family, as an encoder to evaluate.

    Args:
        family: the family.
        folder: folder that has the encoders' folders.
        work: folder for copies of language models whose tokenizer writes around each text.
    """
    if family.name == DEFAULT_ENCODER.name:
        return RequestedEncoder(DEFAULT_ENCODER, family=family.name)
    model = folder / family.name
    if family.is_language_model:
        model = write_around_texts(model, work / family.name)
    spec = EncoderSpec(
        family.name,
        str(model),
        default_prompt_name=family.prompt,
        max_length=None if family.is_static else MAX_TOKENS,
        chat_template="off",
        dtype="bfloat16" if family.is_language_model else "float32",
    )
    return RequestedEncoder(spec, family=family.name)


def request_layers(family: Family, model: RequestedEncoder) -> list[RequestedEncoder]:
    """Return the layers of a family's model, as encoders to evaluate."""
    return [layer for written in family.layers for layer in list_variants(model.spec, written)]


def write_around_texts(model: Path, copy: Path) -> Path:
    """Copy an encoder's folder, with links to its weights, and make its tokenizer write `BEFORE` and `AFTER` each text.

    A text that is too long is cut before `AFTER` is written. A copy that exists is left as it is.
    """
    if (copy / "tokenizer.json").exists():
        return copy
    shutil.copytree(model, copy, ignore=shutil.ignore_patterns("*.safetensors", "tokenizer.json"), dirs_exist_ok=True)
    for weights in model.glob("*.safetensors"):
        (copy / weights.name).unlink(missing_ok=True)
        (copy / weights.name).symlink_to(weights.resolve())
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    around = {
        "before": tokenizer.encode(BEFORE).ids,  # with the token that begins every text, if there is one
        "after": tokenizer.encode(AFTER, add_special_tokens=False).ids,
    }
    settings = json.loads((model / "tokenizer.json").read_bytes())
    text: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    single = [_special("before"), *text, _special("after")]
    settings["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            name: {"id": name, "ids": ids, "tokens": [tokenizer.id_to_token(number) for number in ids]}
            for name, ids in around.items()
        },
    }
    (copy / "tokenizer.json").write_text(json.dumps(settings))
    return copy


def _special(name: str) -> dict[str, Any]:
    """Return the place of a special token in a template."""
    return {"SpecialToken": {"id": name, "type_id": 0}}
