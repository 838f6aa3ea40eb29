"""Writes docs/reference/ from the code, and llms.txt from the pages: `python -m docs.generate`, or `make reference`.

A test fails where a page is not what this makes. Nothing in the pages depends on the machine.
"""

import ast
import inspect
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from fastapi.routing import APIRoute

from docs.library import training_page, transforms_page, tree_of
from lathe.service.app import create_app
from lathe.service.cli.main import app as commands
from lathe.service.encoder_settings import EncoderSettings
from lathe.service.services import ADMIN
from lathe.service.settings import Settings
from lathe.training.json_object import read_field_descriptions

HERE = Path(__file__).parent
OUT = HERE / "reference"
INDEX = HERE.parent / "llms.txt"
MADE = "<!-- made by docs/generate.py; write in the code, not here -->"
CORES = "the cores it may use"
"""How a default is written that is another number on every machine."""

ADMIN_ONLY = "Admin. "

HTTP = """# HTTP

Every call of a running server, which shows the same at `/docs` and `/openapi.json`. Fields in italics must be there.
Admin's calls take a key of `LATHE_ADMIN_KEYS`, or the one in `$LATHE_HOME/admin.key`; the others one of
`LATHE_API_KEYS` where there are any; as `Authorization: Bearer KEY`. Errors are
`{"error": {"message", "type", "param", "code"}}`."""

COMMANDS = """# Commands

What `lathe COMMAND --help` says. A few options can be set by a variable instead, which is named; every command reads
the [settings](settings.md), such as `LATHE_HOME`."""

SETTINGS = """# Settings

Environment variables, read once at start. One that cannot be used ends the command with a line that names it."""


def pages() -> dict[Path, str]:
    """Return the text of every page, by its path."""
    made = {
        "http.md": http,
        "commands.md": command_line,
        "settings.md": settings,
        "python.md": transforms_page,
        "training.md": training_page,
    }
    texts = {OUT / name: f"{MADE}\n\n" + "\n".join(make()).rstrip() + "\n" for name, make in made.items()}
    return texts | {INDEX: "\n".join(assistants_index(texts)) + "\n"}


def assistants_index(reference: dict[Path, str]) -> Iterator[str]:
    """Yield the index for coding assistants: every page, command, call and public name, with a sentence each.

    Args:
        reference: texts of the reference pages, by path.
    """
    title, what_it_is = (HERE.parent / "README.md").read_text().split("\n\n")[:2]
    yield f"{title}\n\n> {' '.join(what_it_is.split())}"
    for part in (HERE / "README.md").read_text().split("\n\n")[2:]:
        part = re.sub(r"\]\((?!\.\./)", "](docs/", part).replace("](../", "](")
        yield "\n" + re.sub(r"^\*\*(.*)\*\*$", r"## \1", part.rstrip())
    for heading, name, level in (
        ("Commands", "commands.md", "##"),
        ("Calls of the server", "http.md", "##"),
        ("Names of lathe.transforms", "python.md", "###"),
        ("Names of lathe.training", "training.md", "###"),
    ):
        yield f"\n## {heading}: docs/reference/{name}\n"
        entries = re.findall(rf"^{level} (.+)\n\n(?:`.*\n\n)?(.+(?:\n.+)*)", reference[OUT / name], re.MULTILINE)
        yield from (f"- `{entry}`: {first_sentence(text)}" for entry, text in entries)


def first_sentence(text: str) -> str:
    """Return the first sentence of a paragraph, in one line."""
    sentence = re.split(r"(?<=\.)\s", " ".join(text.removeprefix(ADMIN_ONLY).split()))[0]
    return f"{sentence} Takes an admin key." if text.startswith(ADMIN_ONLY) else sentence


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(text: Any) -> str:
    """Return a text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|")


# HTTP, from the OpenAPI


def http() -> Iterator[str]:
    """Yield every call with its fields."""
    with tempfile.TemporaryDirectory() as home:
        app = create_app(Settings(home=Path(home)))
    document = app.openapi()
    admin = {
        (route.path, method.lower())
        for route in app.routes
        if isinstance(route, APIRoute) and any(dependency in ADMIN for dependency in route.dependencies)
        for method in route.methods
    }
    yield HTTP
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            whose = ADMIN_ONLY if (path, method) in admin else ""
            yield f"\n## {method.upper()} {path}\n\n{whose}{call.get('description') or call['summary']}"
            rows = [
                [
                    named(one["name"], one.get("required")),
                    one["in"],
                    kind(one["schema"]),
                    default_value(one["schema"]),
                    cell(one.get("description", "")),
                    code(one["schema"].get("examples", [])),
                ]
                for one in call.get("parameters", [])
            ]
            schema = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            for name, field in schema.get("properties", {}).items():
                required = name in schema.get("required", [])
                values = [example[name] for example in schema.get("examples", []) if name in example]
                rows.append(
                    [
                        named(name, required),
                        "body",
                        kind(field),
                        default_value(field),
                        cell(field.get("description", "")),
                        code(values),
                    ]
                )
            if rows:
                yield "\n" + markdown_table(["field", "in", "type", "default", "what it is", "example"], rows)
            headers = call["responses"].get("200", {}).get("headers", {})
            if headers:
                told = [[f"`{name}`", cell(one.get("description", ""))] for name, one in headers.items()]
                yield "\n" + markdown_table(["header of the answer", ""], told)


def named(name: str, required: bool | None) -> str:
    """Return a field's name, in italics where it must be there."""
    return f"*`{name}`*" if required else f"`{name}`"


def default_value(schema: dict[str, Any]) -> str:
    """Return a field's default as JSON, or nothing where it has none."""
    return f"`{json.dumps(schema['default'])}`" if schema.get("default") is not None else ""


def code(examples: list[Any]) -> str:
    """Return the first of a field's examples, as JSON."""
    return cell(f"`{json.dumps(examples[0])}`") if examples else ""


def kind(schema: dict[str, Any]) -> str:
    """Return a JSON type in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(kind(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "enum" in schema:
        return cell(", ".join(f"`{value}`" for value in schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    return str(schema.get("type", "object"))


# Commands, from Typer


def command_line() -> Iterator[str]:
    """Yield every command with its options."""
    yield COMMANDS
    yield from of_command("lathe", typer.main.get_command(commands))


def of_command(name: str, command: Any) -> Iterator[str]:
    """Yield a command and those below it."""
    if hasattr(command, "commands"):
        for below, one in command.commands.items():
            yield from of_command(f"{name} {below}", one)
        return
    yield f"\n## {name}\n\n{inspect.cleandoc(command.help or '')}"
    rows = []
    for option in command.params:
        if option.name == "help":
            continue
        is_argument = option.param_type_name == "argument"
        written = option.name.upper() if is_argument else ", ".join(option.opts + option.secondary_opts)
        default = "" if option.required or option.default in (None, False, ()) else f"`{option.default}`"
        rows.append(
            [
                named(written, option.required),
                default,
                cell(f"{option.help or ''}{f' [`{option.envvar}`]' if option.envvar else ''}"),
            ]
        )
    if rows:
        yield "\n" + markdown_table(["option", "default", ""], rows)


# Settings, from the docstrings below the fields or of the class


def settings() -> Iterator[str]:
    """Yield every setting of a server, and of an encoder."""
    yield SETTINGS
    yield "\n" + markdown_table(["variable", "default", ""], list(fields_of(Settings, "LATHE_")))
    yield "\n## An encoder of `LATHE_ENCODERS`\n\nA JSON list of objects, or a file with one; the first is the default."
    yield "\n" + markdown_table(["field", "default", ""], list(fields_of(EncoderSettings, "")))


def fields_of(model: type, prefix: str) -> Iterator[list[str]]:
    """Yield name, default and meaning of a model's fields, as the source writes them."""
    body, described = tree_of(model).body, read_field_descriptions(model, none="unset")
    for statement, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        below = ast.get_docstring(ast.Module([after], [])) if isinstance(after, ast.Expr) else None
        said = below or described.get(statement.target.id)
        name = prefix + (statement.target.id.upper() if prefix else statement.target.id)
        yield [f"`{name}`", default_of(statement, model), cell(said or "")]


def default_of(statement: ast.AnnAssign, model: Any) -> str:
    """Return a default in words: as a number it may be another on every machine."""
    if statement.value is None:
        return "must be given"
    written = ast.unparse(statement.value)
    if "CORES" in written:
        return CORES
    value = model.model_fields[ast.unparse(statement.target)].default
    if value is None or value in ((), "", {}):
        return ""
    return (
        f"{value:,}"
        if isinstance(value, int) and value >= 10_000 and not isinstance(value, bool)
        else f"`{str(value).lower()}`"
    )


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
