"""What can be told of commands without running them: they parse, and what they name is there."""

import re
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import typer

from lathe.service.cli.main import app
from tests.docs.blocks import ROOT
from tests.docs.extras import find_mistakes

ENDS = {"&&", "||", "|", ";", "&", "(", ")"}
REDIRECTIONS = {">", ">>", "<"}
TAKEN = {"cd", "curl", "export", "git", "kustomize", "mkdir", "mv", "psql", "ray", "rm", "twine"}
"""Programs of others whose words mean nothing to us."""


def commands_of(script: str) -> list[list[str]]:
    """Return each simple command of a script as words, without variables set before it, comments and redirections."""
    found: list[list[str]] = []
    for line in re.sub(r"\\\n", " ", script).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        before = ""
        for word in [*lexer, ";"]:
            is_file = before in REDIRECTIONS
            is_variable = not words and re.match(r"[A-Z_]+=", word)
            if word not in ENDS and word not in REDIRECTIONS and not is_file and not is_variable:
                words.append(word)
            elif word in ENDS and words:
                found.append(words)
                words = []
            before = word
    return found


def check(script: str) -> None:
    """Raise `ValueError` if a script cannot work, as far as can be told without running it."""
    parsed = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    if parsed.returncode:
        raise ValueError(parsed.stderr)
    for words in commands_of(script):
        program = Path(words[0]).name
        if program not in CHECKS and program not in TAKEN:
            raise ValueError(f"nothing here knows the program {program}")
        CHECKS.get(program, lambda _: None)(words[1:])


def check_lathe(words: list[str]) -> None:
    """Raise `ValueError` unless a `lathe` command and its options exist and the values have their types."""
    command = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, words = (words or [""])[0], words[1:]
        if name not in command.commands:
            raise ValueError(f"there is no command {name!r}")
        command = command.commands[name]
    try:
        command.make_context(command.name, words)
    except Exception as error:  # of the click that typer carries along
        raise ValueError(f"lathe {command.name}: {getattr(error, 'message', error)}") from error


def check_make(words: list[str]) -> None:
    """Raise `ValueError` unless the targets are in the Makefile."""
    made = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
    if made.returncode:
        raise ValueError(made.stderr)


def check_pip(words: list[str]) -> None:
    """Raise `ValueError` for a distribution or an extra that Lathe does not have."""
    if mistakes := find_mistakes(words):
        raise ValueError(f"Lathe has no {', '.join(mistakes)}")


def check_python(words: list[str]) -> None:
    """Raise `ValueError` unless the module exists."""
    if words[0] != "-m" or find_spec(words[1]) is None:
        raise ValueError(f"there is no module {words[1:2]}")


def check_serve(words: list[str]) -> None:
    """Raise `ValueError` unless the application that Ray Serve builds exists."""
    for word in words:
        module, colon, name = word.partition(":")
        if not colon:
            continue
        found = find_spec(module)
        if found is None or f"\ndef {name}(" not in Path(found.origin or "").read_text():
            raise ValueError(f"{module} has no {name}")


def check_files(words: list[str]) -> None:
    """Raise `ValueError` unless the copied path and each path named by an option are in the repository."""
    named = [value for option, value in zip(words, words[1:], strict=False) if option in ("--file", "--kustomize")]
    plain = [word for word in words[:1] if "/" in word]
    for path in named + plain:
        if not (ROOT / path).exists():
            raise ValueError(f"{path} is not there")


def check_wrapped(words: list[str]) -> None:
    """Raise `ValueError` unless the command that a program of others runs can work."""
    CHECKS[words[0]](words[1:])


CHECKS = {
    "lathe": check_lathe,
    "make": check_make,
    "pip": check_pip,
    "python": check_python,
    "serve": check_serve,
    "cp": check_files,
    "docker": check_files,
    "kubectl": check_files,
    "opentelemetry-instrument": check_wrapped,
}
"""What is asked of the words after a program's name."""
