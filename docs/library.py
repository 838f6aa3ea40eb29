"""The pages of the libraries: each public name of `lathe.transforms` and `lathe.training` from its docstring."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lathe import training, transforms
from lathe.transforms.base import Transform
from lathe.transforms.sklearn import ChainTransformer

ROOT = Path(__file__).resolve().parents[1]

PYTHON = """# Python

`from lathe.transforms import …`: the mathematics as a library of its own. NumPy in, NumPy out; a tensor in, a tensor
out on its device. The docstrings in [lathe/transforms](../../transforms/lathe/transforms) say more: equations, what was
tried. `TRANSFORMS` has every transform by its kind."""

TRAINING = """# Python: texts and encoders

`from lathe.training import …`: what a notebook needs to encode texts, fit a chain on them, ask for advice and score
tasks. The distribution is `lathe-training`; the [mathematics](python.md) is `lathe-transforms`."""

SKLEARN = "`from lathe.transforms.sklearn import ChainTransformer`, with the extra `lathe-transforms[sklearn]`."


def training_page() -> Iterator[str]:
    """Yield the lines on every public name of the library of texts and encoders."""
    things = {name: getattr(training, name) for name in training.__all__}
    yield TRAINING
    yield "\n## Functions"
    for name in (name for name, thing in things.items() if inspect.isfunction(thing)):
        yield from of_thing(name, things[name])
    yield "\n## Classes"
    for name in (name for name, thing in things.items() if inspect.isclass(thing)):
        unlisted = [base for base in things[name].__mro__[1:] if base.__module__.startswith(training.__name__)]
        yield from of_thing(name, things[name], [base for base in unlisted if base.__name__ not in things])


def transforms_page() -> Iterator[str]:
    """Yield the lines on every public name of the library of transforms."""
    things = {name: getattr(transforms, name) for name in transforms.__all__}
    steps = {n: t for n, t in things.items() if inspect.isclass(t) and issubclass(t, Transform)}
    errors = {n: t for n, t in things.items() if inspect.isclass(t) and issubclass(t, Exception)}
    functions = {n: t for n, t in things.items() if inspect.isfunction(t)}
    classes = {n: t for n, t in things.items() if inspect.isclass(t) and n not in steps | errors}
    yield PYTHON
    for title, group in {"Chains and moments": classes, "Transforms": steps, "Functions": functions}.items():
        yield f"\n## {title}"
        for name, thing in group.items():
            yield from of_thing(name, thing)
    yield f"\n## In scikit-learn\n\n{SKLEARN}"
    yield from of_thing("ChainTransformer", ChainTransformer)
    yield "\n## Errors\n"
    yield from (f"- `{name}`: {summary(thing)}" for name, thing in errors.items())


def of_thing(name: str, thing: Any, bases: Sequence[type] = ()) -> Iterator[str]:
    """Yield the lines on a function, or on a class with its methods and those of `bases`, which no page lists."""
    kind_of_step = f", kind `{thing.kind}`" if isinstance(getattr(thing, "kind", None), str) else ""
    tree = tree_of(thing)
    own = [f for f in tree.body if isinstance(f, ast.FunctionDef) and inspect.isclass(thing)]
    made = next((f for f in own if f.name == "__init__"), None) if inspect.isclass(thing) else tree
    file = Path(inspect.getsourcefile(thing) or "").resolve().relative_to(ROOT).as_posix()
    yield f"\n### {name}\n\n`{name}({arguments(made)})`{kind_of_step} ([source](../../{file}))\n\n{summary(thing)}"
    for section, text in sections(inspect.getdoc(thing) or ""):
        yield f"\n{section}\n\n{text}"
    own += [f for base in bases for f in tree_of(base).body if isinstance(f, ast.FunctionDef)]
    public = [f for f in own if not f.name.startswith("_") and "overload" not in decorators(f)]
    if public:
        yield "\nMethods and properties:\n"
    for method in public:
        call = method.name if "property" in decorators(method) else f"{method.name}({arguments(method)})"
        yield f"- `{call}`: {(ast.get_docstring(method) or '').partition(chr(10))[0]}"


def decorators(function: ast.FunctionDef) -> list[str]:
    """Return the decorators of a function as they are written."""
    return [ast.unparse(decorator) for decorator in function.decorator_list]


def arguments(function: ast.FunctionDef | None) -> str:
    """Return the names and defaults of a function's arguments, without annotations."""
    if function is None:
        return ""
    for argument in ast.walk(function.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    return re.sub(r"^(self|cls)(, )?", "", ast.unparse(function.args))


def summary(thing: Any) -> str:
    """Return the first paragraph of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def sections(doc: str) -> Iterator[tuple[str, str]]:
    """Yield the sections `Args`, `Attributes`, `Returns` and `Raises` as lists."""
    for match in re.finditer(r"^(Args|Attributes|Returns|Raises):\n((?:[ ]{4}.*\n?|\n(?=[ ]{4}))+)", doc, re.MULTILINE):
        items = re.split(r"\n(?=\S)", textwrap.dedent(match[2]).strip())
        lines = [re.sub(r"^(\w+(?:, \w+)*):", r"`\1`:", " ".join(item.split())) for item in items]
        yield match[1] + ":", "\n".join(f"- {line}" for line in lines)


def tree_of(thing: Any) -> Any:
    """Return the syntax tree of a class or function."""
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]
