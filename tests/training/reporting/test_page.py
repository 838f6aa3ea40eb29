from types import SimpleNamespace

import pytest

from lathe.training.reporting.page import render_sentences


def render(folder, template, **data):
    (folder / "summary.txt.j2").write_text(template)
    return render_sentences(folder / "summary.txt.j2", data)


def test_render_sentences_replaces_line_breaks_in_values(tmp_path):
    assert render(tmp_path, "It failed: {{ why }}.", why="one\ntwo") == ["It failed: one two."]


@pytest.mark.parametrize(
    ("low", "high", "text"), [(0.5, 2, "+1.00 points [+0.50, +2.00]"), (None, None, "+1.00 points")]
)
def test_the_points_filter_appends_the_interval_if_there_is_one(tmp_path, low, high, text):
    assert render(tmp_path, "{{ one | points }}", one=SimpleNamespace(value=1, low=low, high=high)) == [text]
