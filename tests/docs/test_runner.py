"""The runner notices what pages get wrong."""

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.commands import check
from tests.docs.page import BlockError
from tests.docs.shape import missing


def single_block(text, language="", directive=""):
    """Return the only block of a page made of this text."""
    comment = f"<!-- run: {directive} -->\n" if directive else ""
    return blocks_of(f"# Page\n\n{comment}```{language}\n{text}\n```\n", "page.md")[0]


@pytest.mark.parametrize(
    "page",
    [
        "- item\n  ```sh\n  lathe\n  ```\n",
        "~~~\nlathe\n~~~\n",
        "<!-- run: {when: long} -->\n\ntext\n\n```\nlathe\n```\n",
        "<!-- run: {when: never} -->\n```\nlathe\n```\n",
        "<!-- run: {when: elsewhere} -->\n```\nlathe\n```\n",
        "<!-- run: {reason: too slow} -->\n```\nlathe\n```\n",
    ],
    ids=["indented", "tildes", "comment apart", "unknown time", "no reason", "reason without need"],
)
def test_blocks_of_refuses_pages_with_malformed_fences_or_directives(page):
    with pytest.raises(ValueError, match="page.md"):
        blocks_of(page, "page.md")


@pytest.mark.parametrize(
    "script",
    [
        "lathe fit --name x --source y --step r2",
        "lathe fit --name x",
        "lathe serve --port many",
        "lathe chain list",
        "make everything",
        "pip install 'lathe-service[everything]'",
        "pip install 'lathe-training[redis]'",
        "pip install lathe lancedb",
        "pip install 'lathe[redis]'",
        "python -m benchmarks.nothing",
        "cp docker/nothing .env",
        "docker compose --file docker/nothing.yml up",
        "serve run lathe.service.ray_serve:make",
        "unheard-of --option",
        "if true",
    ],
)
def test_check_refuses_a_script_with_a_command_that_cannot_work(script):
    with pytest.raises(ValueError, match=r"."):
        check(script)


def test_missing_compares_printed_lines_in_order_and_ignores_numbers_hashes_and_elisions():
    printed = 'chain  live\nmine 3  0.871\n{"a":[[0.1,-2e-05,0.3]],"b":"x"}'
    assert missing("chain      live\nmine  1  0.9", printed) == []
    assert missing("mine  1 …", printed) == []
    assert missing("chain dead", printed) == ["chain dead"]
    assert missing('{"id": "0a1b2c3d4e5f", "score": 0.5}', '{"id":"fedcba987654","score":0.3554135859012604}') == []
    assert missing("mine 1 1\nchain live", printed) == ["chain live"], "lines come in order"
    assert missing('{"vectors": [[0.5, …]], "chain": "compact@1"}', '{"vectors":[[0.1,0.2]],"chain":"compact@1"}') == []
    assert missing('{"vectors": [[0.5, …]], "chain": "compact@1"}', '{"vectors":[[0.1,0.2]],"name":"compact@1"}')


def test_missing_with_a_tolerance_compares_numbers_too():
    printed = '{"a":[[0.2789,-0.0886,-2e-05]],"b":"x"}\n1,274 rows: 0.871 ± 0.02, space fedcba987654'
    assert missing('{"a": [[0.28, -0.09, 0.0]], …\n1,300 rows: 0.9 ± 0.02, space 0a1b2c3d4e5f', printed, 0.1) == []
    assert missing("1,274 rows:\n  0.9 ± 0.02, …", printed, 0.1) == [], "an indented line goes on the one before it"
    assert missing("1,300 rows: 0.9 ± …", printed, 0.01) == ["1,300 rows: 0.9 ± …"]
    assert missing('{"a": [[0.28, 0.09, 0.0]], …', printed, 0.1), "a sign differs"
    assert missing('{"a": [[0.28, -0.09]], …', printed, 0.1), "a number is missing"


def test_comments_behind_calls_of_print_are_compared_where_there_is_a_tolerance(scratch_page):
    code = "print(0.5, 'a')  # 0.52 a\nx = 1  # one"
    scratch_page.run(single_block(code, "python", "{tolerance: 0.1}"))
    with pytest.raises(BlockError, match="not printed"):
        scratch_page.run(single_block(code, "python", "{tolerance: 0.01}"))


@pytest.mark.parametrize(
    ("text", "language", "directive"),
    [
        ("true\nfalse\ntrue", "", ""),
        ("no-such-program", "", ""),
        ("echo bright", "", "{swap: {dark: light}}"),
        ("raise ValueError", "python", ""),
        ("sources: []\nsauces: []", "yaml", "{reads: job}"),
        ("sources: []", "yaml", ""),
        ("lathe fitt", "", "{when: elsewhere, reason: to try it}"),
    ],
    ids=["a command fails", "no program", "nothing to swap", "code fails", "bad job", "no reader", "no command"],
)
def test_running_a_block_that_fails_raises_block_error(scratch_page, text, language, directive):
    with pytest.raises(BlockError, match="page.md:"):
        scratch_page.run(single_block(text, language, directive))


def test_blocks_of_a_page_share_a_folder_python_names_and_printed_output(scratch_page):
    scratch_page.run(single_block("echo first > said.txt"))
    scratch_page.run(single_block("from pathlib import Path\n\nsaid = Path('said.txt').read_text()", "python"))
    scratch_page.run(single_block("print(said, 12)", "python"))
    scratch_page.run(single_block("first\n7", "text"))
    with pytest.raises(BlockError, match="not printed"):
        scratch_page.run(single_block("second", "text"))
