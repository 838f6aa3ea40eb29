import pytest

from research.reze_experiment.settings import ExperimentSettings
from research.reze_experiment.targets import choose_targets


def labelled(count):
    return [{"text": f"text {n}", "label": ["up", "down"][n % 2]} for n in range(count)]


def judged(count, start=0):
    return [(f"q{n}", f"d{n}", 1) for n in range(start, start + count)]


@pytest.fixture
def data(tmp_path, write_data_set):
    """Return a function that writes data sets by the number of rows in their splits, and returns their folder."""

    def build(**sets):
        for name, (task, train, test, *language) in sets.items():
            meta = {"task": task} | ({"language": language[0]} if language else {})
            splits = {split: count for split, count in (("train", train), ("test", test)) if count}
            if task == "retrieval":
                files = {"corpus.jsonl": [{"_id": f"d{n}", "text": f"text {n}"} for n in range(50)]}
                files |= {"queries.jsonl": [{"_id": f"q{n}", "text": f"query {n}"} for n in range(50)]}
                qrels = {split: judged(count) for split, count in splits.items()}
                write_data_set(tmp_path / "data" / name, meta, files, qrels)
            else:
                files = {f"{split}.jsonl": labelled(count) for split, count in splits.items()}
                write_data_set(tmp_path / "data" / name, meta, files)
        return tmp_path / "data"

    return build


def choose_names(folder, min_rows=10, **given):
    """Return the names of the targets that are chosen from a folder."""
    settings = ExperimentSettings.model_validate({"sources": [{"folder": folder}], "min_rows": min_rows} | given)
    return [target.name for target in choose_targets(settings)]


def test_a_target_has_more_than_min_rows_in_its_training_or_test_split(data):
    folder = data(
        by_train=("classification", 11, 2),
        by_test=("classification", 2, 11),
        at_threshold=("classification", 10, 10),
        below=("classification", 6, 6),
    )
    assert choose_names(folder) == ["by_train", "by_test"]
    assert choose_names(folder, min_rows=9) == ["by_train", "at_threshold", "by_test"]


def test_the_rows_of_a_retrieval_are_its_judgements(data):
    folder = data(few=("retrieval", 9, 9), many=("retrieval", 11, 3))
    assert choose_names(folder) == ["many"]


def test_choose_targets_takes_those_with_the_most_training_rows_of_each_task(data):
    folder = data(
        a=("classification", 20, 99),
        b=("classification", 40, 11),
        c=("classification", 30, 11),
        d=("classification", 30, 11),
        e=("classification", 25, 11),
        search=("retrieval", 11, 3),
    )
    assert choose_names(folder) == ["b", "c", "d", "search"]
    assert choose_names(folder, targets_per_task=1) == ["b", "search"]
    assert choose_names(folder, targets_per_task=9) == ["b", "c", "d", "e", "a", "search"]


def test_named_targets_are_taken_whatever_their_size_and_language(data):
    folder = data(small=("classification", 2, 2), german=("classification", 2, 2, "de"), big=("classification", 99, 99))
    named = [{"folder": folder / "german"}, {"folder": folder / "small", "name": "mine"}]
    assert choose_names(folder, targets=named) == ["german", "mine"]
