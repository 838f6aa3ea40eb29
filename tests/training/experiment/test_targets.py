import pytest

from training.errors import JobError
from training.research.reze_experiment.settings import ExperimentSettings
from training.research.reze_experiment.targets import choose_targets


def labelled(count):
    return [{"text": f"text {n}", "label": ["up", "down"][n % 2]} for n in range(count)]


def judged(count, start=0):
    return [(f"q{n}", f"d{n}", 1) for n in range(start, start + count)]


@pytest.fixture
def data(tmp_path, write_data_set):
    """A writer of data sets below one folder, by the rows of their splits."""

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


def chosen(folder, min_rows=10, **given):
    settings = ExperimentSettings.model_validate({"sources": [{"folder": folder}], "min_rows": min_rows} | given)
    return [target.name for target in choose_targets(settings)]


def test_the_protocol_is_that_of_the_paper_unless_told_otherwise():
    settings = ExperimentSettings.model_validate({"sources": [{"folder": "data"}]})
    assert (settings.min_rows, settings.targets_per_task, settings.overlap) == (1000, 3, "drop")


def test_the_threshold_holds_for_training_or_test_split_and_is_exceeded(data):
    folder = data(
        by_train=("classification", 11, 2),
        by_test=("classification", 2, 11),
        at_threshold=("classification", 10, 10),
        below=("classification", 6, 6),
    )
    assert chosen(folder) == ["by_train", "by_test"]
    assert chosen(folder, min_rows=9) == ["by_train", "at_threshold", "by_test"]


def test_targets_are_english_and_have_a_training_and_a_test_split(data):
    folder = data(
        english=("classification", 11, 11, "en"),
        german=("classification", 99, 99, "de"),
        both=("pairs", 99, 99, "de-en"),
        untrained=("classification", 0, 99),
        untested=("classification", 99, 0),
    )
    assert chosen(folder) == ["english"]


def test_a_retrieval_counts_as_many_rows_as_it_has_judgements(data):
    folder = data(few=("retrieval", 9, 9), many=("retrieval", 11, 3))
    assert chosen(folder) == ["many"]


def test_of_each_task_those_with_the_most_training_rows_are_taken_and_no_more_than_so_many(data):
    folder = data(
        a=("classification", 20, 99),
        b=("classification", 40, 11),
        c=("classification", 30, 11),
        d=("classification", 30, 11),
        e=("classification", 25, 11),
        search=("retrieval", 11, 3),
    )
    assert chosen(folder) == ["b", "c", "d", "search"]
    assert chosen(folder, targets_per_task=1) == ["b", "search"]
    assert chosen(folder, targets_per_task=9) == ["b", "c", "d", "e", "a", "search"]


def test_what_is_excluded_broken_or_no_folder_of_ours_is_no_target(data, tmp_path, write_data_set):
    folder = data(good=("classification", 11, 11), excluded=("classification", 99, 99))
    broken = {"train.jsonl": [b"{cut"] * 99, "test.jsonl": labelled(99)}
    write_data_set(folder / "broken", {"task": "classification"}, broken)
    write_data_set(folder / "unknown", {"task": "singing"}, {"train.jsonl": labelled(99), "test.jsonl": labelled(99)})
    write_data_set(tmp_path, None, {"more.jsonl": [{"anchor": f"a {n}", "positive": f"b {n}"} for n in range(99)]})
    sources = [{"folder": folder, "exclude": ["excluded"]}, {"jsonl": tmp_path / "more.jsonl"}]
    assert chosen(folder, sources=sources) == ["good"]


def test_targets_that_are_named_are_taken_as_they_are(data):
    folder = data(small=("classification", 2, 2), german=("classification", 2, 2, "de"), big=("classification", 99, 99))
    named = [{"folder": folder / "german"}, {"folder": folder / "small", "name": "mine"}]
    assert chosen(folder, targets=named) == ["german", "mine"]


def test_where_nothing_is_eligible_the_error_says_what_would_be(data):
    folder = data(small=("classification", 2, 2), german=("classification", 2000, 2000, "de"))
    with pytest.raises(JobError, match=r"more than 1,000 rows; name targets, or lower min_rows"):
        chosen(folder, min_rows=1000)


def test_a_target_that_is_not_there_is_an_error(data, tmp_path):
    folder = data(small=("classification", 2, 2))
    with pytest.raises(JobError, match="there is no folder .*absent"):
        chosen(folder, targets=[{"folder": tmp_path / "absent"}])
