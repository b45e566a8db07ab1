"""The documentation and the sources of the installed Python, NumPy and torch, read with `ast`: nothing is run.

Left out, for size, speed or because others wrote it: tests, vendored and deprecated packages of the standard library;
NumPy's testing, building and typing; of torch everything but the packages in `TORCH`. What is left parses in seconds.
What is written in C has no source here, so the docstrings of `builtins` (such as the methods of `str`), `math`,
`itertools` and other modules in C are left out too, unless Python code attaches them, as NumPy's and torch's does.
"""

import ast
import hashlib
import importlib.util
import inspect
import os
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from depthroute.data import files
from depthroute.errors import DataError

VALIDATION = 0.1
SHORTEST = 48
TOPICS = "pydoc_data.topics"
ATTACHERS = {"add_docstr", "_add_docstr", "add_docstr_all", "add_newdoc"}
SKIPPED = {
    *("__pycache__", "site-packages", "dist-packages", "test", "tests", "testing", "typing", "_typing", "_pyinstaller"),
    *("idlelib", "lib2to3", "turtledemo", "distutils", "ensurepip", "encodings", "__phello__", "f2py"),
}
TORCH = {
    *("accelerator", "amp", "autograd", "compiler", "cuda", "distributions", "fft", "func", "futures", "jit"),
    *("linalg", "masked", "nested", "nn", "optim", "signal", "special", "utils"),
}


class Module(NamedTuple):
    name: str
    path: Path


def modules() -> list[Module]:
    """The modules that are read, sorted by name."""
    standard = Path(sysconfig.get_paths()["stdlib"])
    found = [*walk(standard, ""), *walk(package("numpy"), "numpy")]
    torch = package("torch")
    for entry in sorted(TORCH):
        if (torch / entry).is_dir():
            found += walk(torch / entry, f"torch.{entry}")
    found += [Module(module_name("torch", path.name), path) for path in torch.glob("*.py")]
    return sorted(found)


def package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise DataError(f"python-docs: the package '{name}' is not installed, so its documentation cannot be read")
    return Path(spec.origin).parent


def walk(folder: Path, prefix: str) -> Iterator[Module]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and "-" not in name]
        inner = Path(place).relative_to(folder).parts
        for name in names:
            # The generated description of the machine that built Python is no text.
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                yield Module(module_name(".".join([*([prefix] if prefix else []), *inner]), name), Path(place, name))


def module_name(parent: str, file: str) -> str:
    stem = file.removesuffix(".py")
    return parent if stem == "__init__" and parent else f"{parent}.{stem}".removeprefix(".")


def fingerprint() -> str:
    """A digest of the names and contents of all modules: about 20 MB are read, in a twentieth of a second."""
    listing = "\n".join(f"{name} {files.sha256(path)}" for name, path in modules())
    return hashlib.sha256(listing.encode()).hexdigest()


def is_validation(module: str) -> bool:
    """The side of a module, the same for its documentation and its source."""
    word = hashlib.sha256(module.encode()).digest()[:8]
    return int.from_bytes(word, "big") < VALIDATION * 2**64


def source(module: Module) -> str:
    try:
        return importlib.util.decode_source(module.path.read_bytes())
    except (SyntaxError, UnicodeDecodeError) as error:
        raise DataError(f"{module.path}: cannot be decoded as Python source: {error}") from None


def documentation(module: Module) -> Iterator[str]:
    """Documents of one module: its own docstring, then each function or class (methods included), then attached ones.

    A definition is headed by its signature without the module's name, so that a copy in another module is seen as one.
    Templates that the package fills in when it is imported are left as they are written.
    """
    text = source(module)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise DataError(f"{module.path}: cannot be parsed as Python {error}") from None
    if own := ast.get_docstring(tree):
        yield own
    for node in definitions(tree):
        if described := describe(node, ""):
            yield "\n\n".join(described)
    # Walking every node of a tree costs more than parsing it.
    if "add_docstr" in text or "add_newdoc" in text:
        yield from attached(tree)
    if module.name == TOPICS:
        yield from topics(tree)


def definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions of a body, also those under an `if`, `try` or `with`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from definitions(child)


def describe(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> list[str]:
    """Signature and docstring of a definition and, for a class, of what it defines."""
    name = owner + node.name
    own = ast.get_docstring(node)
    if not isinstance(node, ast.ClassDef):
        return [f"{name}({', '.join(arguments(node.args))})", own] if own else []
    parts = [f"class {name}", own] if own else []
    for inner in definitions(node):
        parts += describe(inner, f"{name}.")
    return parts


def arguments(node: ast.arguments) -> list[str]:
    names = [argument.arg for argument in (*node.posonlyargs, *node.args)]
    if node.vararg or node.kwonlyargs:
        names.append(f"*{node.vararg.arg if node.vararg else ''}")
    names += [argument.arg for argument in node.kwonlyargs]
    return [*names, f"**{node.kwarg.arg}"] if node.kwarg else names


def attached(tree: ast.Module) -> Iterator[str]:
    """Docstrings given to a function such as `add_docstr(thing, "...")` or `add_newdoc(module, thing, "...")`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        if called not in ATTACHERS:
            continue
        heading = literal(node.args[1]) if called == "add_newdoc" and len(node.args) > 2 else None
        last = node.args[-1]
        members = last.elts if isinstance(last, ast.List) else [last]
        for member in members:
            name, text = heading, literal(member)
            if isinstance(member, ast.Tuple) and len(member.elts) == 2:
                name, text = f"{heading}.{literal(member.elts[0])}", literal(member.elts[1])
            if text:
                yield f"{name}\n\n{inspect.cleandoc(text)}" if name else inspect.cleandoc(text)


def literal(node: ast.expr) -> str | None:
    """The string that an expression holds, seen through `.format(...)`, `%` and `+`; None where there is none."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Call(func=ast.Attribute(value=inner)) | ast.BinOp(left=inner, op=ast.Mod()):
            return literal(inner)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return "".join(part for part in (literal(left), literal(right)) if part) or None
    return None


def topics(tree: ast.Module) -> Iterator[str]:
    """The language reference that `help("...")` shows: the values of one dictionary."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for value in node.values:
                if text := literal(value):
                    yield inspect.cleandoc(text)
