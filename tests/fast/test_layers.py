"""Imports go one way: a room knows only what stands below it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import launcher

# from the top; those of one line don't know each other
LAYERS = (
    ("__main__",),
    ("cli",),
    ("bench",),
    ("launch",),
    ("flow",),
    ("supervise",),
    ("rules",),
    ("plan",),
    ("measured", "reserve"),
    ("engine",),
    ("machine", "model", "profile"),
    ("fetch",),
    ("keyfile", "paths", "errors", "units"),
    ("diagnostic",),
)
HEIGHT = {room: -depth for depth, line in enumerate(LAYERS) for room in line}
PACKAGE = Path(launcher.__file__).parent


def imports(file: Path) -> Iterator[str]:
    """The rooms that a module imports anywhere, in a function too; what only a type checker reads doesn't count."""
    waiting: list[ast.AST] = [ast.parse(file.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module == "launcher":
            yield from (alias.name for alias in node.names if alias.name in HEIGHT)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("launcher."):
            yield str(node.module).split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (name.split(".")[1] for name in (a.name for a in node.names) if name.startswith("launcher."))


def test_every_room_has_its_place() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert rooms - {"__init__"} == set(HEIGHT)


def test_imports_go_downwards() -> None:
    upwards = [
        f"{file.relative_to(PACKAGE)} imports {room}"
        for file in sorted(PACKAGE.rglob("*.py"))
        for room in imports(file)
        if (own := file.relative_to(PACKAGE).parts[0].removesuffix(".py")) != room
        and own != "__init__"
        and HEIGHT[room] >= HEIGHT[own]
    ]
    assert upwards == []
