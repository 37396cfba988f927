"""The house is as the design draws it: who may import whom, what is public, which dependency stands where."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import sessionworkers

PACKAGE = Path(sessionworkers.__file__).parent

# Room → the rooms that it may import. `errors` is open to all.
ALLOWED: dict[str, set[str]] = {
    "affinity": set(),
    "members": set(),
    "claims": {"affinity"},
    "hop": {"affinity"},
    "client": set(),
    "settings": {"affinity", "sessions"},
    "ledger": {"affinity", "claims"},
    "sessions": {"affinity", "claims", "ledger", "members"},
    "worker": {"affinity", "claims", "hop", "ledger", "members", "observe", "sessions", "settings"},
    "manager": {"affinity", "members", "observe", "settings"},
    "hosts": {"affinity", "hop", "ledger", "manager", "members", "sessions", "settings", "worker"},
    "observe": {"affinity", "members"},
    "cli": {
        "affinity",
        "claims",
        "client",
        "demo",
        "hosts",
        "ledger",
        "manager",
        "members",
        "observe",
        "settings",
        "worker",
    },
    "demo": {"client"},
}

# Optional or special dependency → the one module that imports it.
ONE_PLACE = {
    "gunicorn": {"hosts/gunicorn.py"},
    "uvicorn_worker": {"hosts/gunicorn.py"},
    "redis": {"claims/redis.py"},
    "aiohttp": {"client/transport.py"},
    "msgspec": {
        "ledger/book.py",
        "affinity/documents.py",
        "hop/codec.py",
        "hop/private.py",
        "hop/carried.py",
        "hop/served.py",
    },
}

NEVER = {"pickle", "marshal", "shelve"}
PURE = {"asyncio", "socket", "os", "time", "select", "threading", "random"}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE), ast.parse(path.read_text())


def imports(tree: ast.Module, path: Path) -> Iterator[str]:
    """Full names of the modules that are imported, type-checking blocks left out."""
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ("sessionworkers", *path.parent.parts)[: len(path.parent.parts) + 2 - node.level]
                yield ".".join((*base, node.module or ""))
            else:
                yield node.module or ""


def test_rooms_import_only_what_the_design_allows() -> None:
    wrong = []
    for path, tree in modules():
        if len(path.parts) < 2:
            continue
        room = path.parts[0]
        for name in imports(tree, path):
            parts = name.split(".")
            if parts[0] != "sessionworkers" or len(parts) < 2 or parts[1] in (room, "errors"):
                continue
            if parts[1] not in ALLOWED[room]:
                wrong.append(f"{path} imports {name}")
    assert wrong == []


def test_every_room_has_its_rule() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms <= set(ALLOWED)


def test_the_pure_core_has_no_io_and_no_clock() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules()
        if path.parts[0] == "affinity"
        for name in imports(tree, path)
        if name.split(".")[0] in PURE
    ]
    assert wrong == []


def test_uvicorn_is_touched_in_hosts_and_the_command_line_alone() -> None:
    wrong = [
        f"{path} imports {name}"
        for path, tree in modules()
        if path.parts[0] not in ("hosts", "cli", "manager")
        for name in imports(tree, path)
        if name.split(".")[0] == "uvicorn"
    ]
    assert wrong == []


def test_each_optional_dependency_stands_in_one_module() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path, tree in modules():
        for name in imports(tree, path):
            top = name.split(".")[0]
            assert top not in NEVER, f"{path} imports {name}"
            if top in ONE_PLACE:
                found[top].add(path.as_posix())
    for name, places in found.items():
        assert places <= ONE_PLACE[name], f"{name} is imported in {places}"


def test_public_names_are_a_list() -> None:
    assert sorted(sessionworkers.__all__) == sorted(
        [
            "Session",
            "SessionRouter",
            "SessionworkersError",
            "Worker",
            "__version__",
            "claim",
            "current_session",
            "live_sessions",
        ]
    )
    pytest.importorskip("gunicorn")
    for name in sessionworkers.__all__:
        assert getattr(sessionworkers, name) is not None


def test_no_room_is_a_bag() -> None:
    names = {path.stem for path, _ in modules()}
    assert names.isdisjoint({"utils", "util", "helpers", "helper", "common", "misc"})


def test_the_version_stands_on_top_of_the_changelog_and_in_the_metadata() -> None:
    root = PACKAGE.parent
    if not (root / "CHANGELOG.md").exists():
        pytest.skip("not a checkout")
    assert f'version = "{sessionworkers.__version__}"' in (root / "pyproject.toml").read_text()
    assert "## [Unreleased]" in (root / "CHANGELOG.md").read_text()


def test_the_readme_says_each_thing_once() -> None:
    """An edit has once left half of it there twice."""
    fenced = re.sub(r"^```.*?^```", "", (PACKAGE.parent / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", fenced, re.MULTILINE)
    assert sorted(headings) == sorted(set(headings)) and len(headings) > 10
    lines = [line for line in fenced.splitlines() if len(line) > 60 and not line.startswith("|")]
    assert len(lines) == len(set(lines))
