"""What commands share: options for the fields of a request, and progress where nobody sees a terminal."""

import time
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from lathe.service.cli import options
from lathe.service.errors import BadValueError
from lathe.training.json_object import JsonObject


class Order(JsonObject):
    """What is ordered.

    Attributes:
        dish: name of the dish.
        portions: number of portions; None for one of `dish`.
        size: how large a portion is.
        hot: whether it is heated.
        salt: whether it is salted.
        sides: dishes that come with it.
        prices: price of each.
        table: where it is served.
    """

    dish: str
    portions: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    size: Literal["small", "large"] = "small"
    hot: bool = True
    salt: bool = False
    sides: list[str] = []
    prices: dict[str, float] = {}
    table: int | None = None


@pytest.fixture
def order():
    """Return a function that runs a command with the fields of an order. Its output is the fields."""
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @options.take_fields(Order, dish=typer.Argument(help="What to eat."), sides=options.flag("--side"), table=None)
    def command(fields: dict[str, Any], note: str = "") -> None:
        typer.echo(repr((fields, note)))

    return lambda *words: CliRunner().invoke(app, words)


def test_a_command_gets_the_fields_that_were_given_or_have_a_default(order):
    assert eval(order("soup").output) == ({"dish": "soup", "size": "small", "hot": True, "salt": False}, "")
    words = "soup --portions 2 --size large --no-hot --salt --side bread --side rice --prices soup=3.5 --note fast"
    fields = {"portions": 2, "size": "large", "hot": False, "salt": True, "sides": ["bread", "rice"]}
    assert eval(order(*words.split()).output) == ({"dish": "soup", "prices": {"soup": 3.5}} | fields, "fast")


def test_an_error_of_a_request_names_the_option_and_its_value():
    with pytest.raises(BadValueError, match="^--portions: Input should be greater than or equal to 1, got 0$"):
        options.build_request(Order, {"dish": "soup", "portions": 0})


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
