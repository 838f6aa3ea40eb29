"""Checks of the texts in a request body."""

from typing import Any

from lathe.service.codec import require_rows
from lathe.service.errors import BadValueError
from lathe.training.sources.rows import count_written_numbers, explain_written_vector


def list_texts(inputs: Any, max_texts: int, param: str) -> list[str]:
    """Return the texts in a request, one or a list, as a checked list. Raise for empty texts or token ids.

    Raises:
        BadValueError: if there are no texts, a text is empty, or there are token ids.
        TooLargeError: if there are too many texts.
    """
    texts = [inputs] if isinstance(inputs, str) else inputs
    require_rows(len(texts), max_texts, param)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise BadValueError(
                f"{param} holds token ids, which mean nothing to another tokenizer: send texts "
                "(with LangChain's OpenAIEmbeddings set check_embedding_ctx_length=False)",
                param=param,
            )
        if count := count_written_numbers(text):
            raise BadValueError(f"{param}[{index}] is {explain_written_vector(count)}", param=param)
        if not text:
            raise BadValueError(f"{param}[{index}] is an empty text", param=param)
    return texts
