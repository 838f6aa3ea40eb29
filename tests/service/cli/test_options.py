"""What commands share: progress where nobody sees a terminal."""

import time

from lathe.service.cli import options


def test_progress_is_a_line_now_and_then_where_stderr_is_no_terminal(capsys, monkeypatch):
    monkeypatch.setattr(options, "LINE_SECONDS", 0.05)
    with options.ProgressBar() as progress:
        progress(0.25, "encoding 5 of 20 texts")
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 7
    assert lines[0].startswith(" 25% after 0 s: encoding 5 of 20 texts")


def test_work_that_is_done_at_once_prints_no_progress(capsys):
    with options.ProgressBar() as progress:
        progress(1.0, "done")
    assert capsys.readouterr().err == ""
