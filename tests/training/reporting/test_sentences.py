from types import SimpleNamespace

import jinja2
import pytest

from training.reporting.sentences import render_sentences


def said(folder, template, **data):
    (folder / "summary.txt.j2").write_text(template)
    return render_sentences(folder / "summary.txt.j2", data)


def test_every_line_is_a_sentence_and_blocks_leave_none(tmp_path):
    loop = "{% for n in counts %}\n  {% if n %}\n{{ n | count_of('row') }} <here>.\n  {% endif %}\n{% endfor %}\n"
    template = "{# A note. #}\n\n" + loop
    assert said(tmp_path, template, counts=[1, 0, 2]) == ["1 row <here>.", "2 rows <here>."]


def test_a_misspelt_name_is_an_error(tmp_path):
    with pytest.raises(jinja2.UndefinedError):
        said(tmp_path, "{{ one.valeu }}", one=SimpleNamespace(value=1))


def test_a_line_break_in_a_value_makes_no_second_sentence(tmp_path):
    assert said(tmp_path, "It failed: {{ why }}.", why="one\ntwo") == ["It failed: one two."]


@pytest.mark.parametrize(
    ("low", "high", "text"), [(0.5, 2, "+1.00 points [+0.50, +2.00]"), (None, None, "+1.00 points")]
)
def test_an_interval_follows_its_estimate_where_there_is_one(tmp_path, low, high, text):
    assert said(tmp_path, "{{ one | points }}", one=SimpleNamespace(value=1, low=low, high=high)) == [text]
