from lathe.training.evaluation.worker import TaskDescription
from research.mean_bias_audit.texts import (
    choose_language_texts,
)


def task(name, language, count, start=0):
    """Build a task that asks for `count` texts, each under two prompts."""
    texts = [f"{language} {number}" for number in range(start, start + count)]
    asked = tuple((prompt, text) for prompt in (None, "query") for text in texts)
    return TaskDescription(name, f"key of {name}", language=language, asked=asked, texts=len(asked))


def test_choose_language_texts_samples_equally_many_per_language_english_first():
    found = choose_language_texts(
        [task("a", "de", 80), task("b", "en", 60), task("c", "en", 60, start=50), task("d", "fr", 51)]
    )
    assert list(found.texts) == ["en", "de", "fr"]
    assert found.count == 51
    for name, texts in found.texts.items():
        assert len(set(texts)) == len(texts) == 51
        assert all(text.startswith(name) for text in texts)
    assert {int(text.split()[1]) for text in found.texts["en"]} - set(range(60))  # of both data sets
    assert (found.few, found.unclear) == ({}, [])


def test_choose_language_texts_leaves_out_and_names_languages_with_under_50_texts():
    found = choose_language_texts([task("a", "de", 49), task("b", "fr", 50), task("c", "it", 70)])
    assert list(found.texts) == ["fr", "it"]
    assert (found.count, found.few) == (50, {"de": 49})
