"""Lint rules that pay for themselves (reliability, end of section 5), on the syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from tests.architecture.sources import Source, product

UNSAFE_MODULES = frozenset(("pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"))
UNSAFE_CALLS = frozenset(("eval", "exec", "torch.load", "yaml.load", "yaml.unsafe_load"))
CHANCE_AND_TIME = frozenset(("time", "random", "secrets", "datetime"))
WALL_CLOCK = ("shared/clock.py", "loadgen/", "kernels/", "services/gateway/")
"""Who may know the date: the clock itself, measurements, and the shell that answers with it."""
ENVIRONMENT = (
    "shared/config.py",
    "shared/runtime/service.py",
    "shared/dataplane/nixl_agent.py",
    "shared/dataplane/ucx_library.py",
    "services/local.py",
    "services/member.py",
    "services/probe.py",
    "kernels/",
)
"""Who may read variables: the settings reader, its caller, the supervisor that passes them on, and
the adapters of libraries that take settings no other way."""


def calls(source: Source) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def imports(source: Source) -> Iterator[tuple[str, int]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((name.name.split(".")[0], node.lineno) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0], node.lineno


def offending(wrong: Callable[[str, ast.Call], bool]) -> list[str]:
    return [
        f"{source.name}:{node.lineno} {name}"
        for source in product()
        for name, node in calls(source)
        if wrong(name, node)
    ]


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((entry.value for entry in node.keywords if entry.arg == name), None)


def test_nothing_turns_bytes_into_code() -> None:
    assert [
        f"{source.name}:{line} {name}"
        for source in product()
        for name, line in imports(source)
        if name in UNSAFE_MODULES
    ] == []
    assert offending(lambda name, _: name in UNSAFE_CALLS) == []


def test_no_wait_for() -> None:
    """It loses a cancellation on Python 3.11."""
    assert offending(lambda name, _: name.endswith("wait_for")) == []


def test_every_queue_is_bounded() -> None:
    def unbounded(name: str, node: ast.Call) -> bool:
        queue = name.split(".")[-1] in ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue")
        return queue and not node.args and keyword(node, "maxsize") is None

    assert offending(unbounded) == []


def test_every_task_has_a_name() -> None:
    def nameless(name: str, node: ast.Call) -> bool:
        return name.endswith(("create_task", "ensure_future")) and keyword(node, "name") is None

    assert offending(nameless) == []


def test_cores_have_neither_clock_nor_chance() -> None:
    wrong = [
        f"{source.name}:{line} {name}"
        for source in product()
        if "/core/" in source.name or source.name.startswith(("shared/kv/", "shared/wire/"))
        for name, line in imports(source)
        if name in CHANCE_AND_TIME
    ]
    assert wrong == []


def test_only_the_clock_reads_the_wall_clock() -> None:
    wall = ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today")
    found = offending(lambda name, _: name.endswith(wall))
    assert [entry for entry in found if not entry.startswith(WALL_CLOCK)] == []


def test_only_the_settings_reader_reads_the_environment() -> None:
    wrong = [
        f"{source.name}:{node.lineno}"
        for source in product()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("os.environ", "os.getenv")
    ]
    assert [entry for entry in wrong if not entry.startswith(ENVIRONMENT)] == []


def test_asserts_stand_only_where_invariants_are_checked() -> None:
    """`assert` vanishes under -O and tells a peer nothing."""
    wrong = [
        f"{source.name}:{node.lineno}"
        for source in product()
        for function in ast.walk(source.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and not function.name.lstrip("_").startswith("check")
        for node in ast.walk(function)
        if isinstance(node, ast.Assert)
    ]
    assert wrong == []
