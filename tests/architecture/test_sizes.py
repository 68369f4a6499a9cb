"""Files, functions and signatures stay small (architecture, style)."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator

from tests.architecture.sources import Source, product, suite

FILE_HARD, FILE_SOFT, FILE_MEDIAN = 400, 250, 150
FUNCTION_HARD, FUNCTION_SOFT, FUNCTION_MEDIAN = 60, 40, 12
MOST_PARAMETERS = 8
INIT_LINES = 20
DOCSTRING_LINES = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: Source) -> Iterator[tuple[str, Function]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{source.name}:{node.lineno} {node.name}", node


def length(node: Function) -> int:
    """Lines, for a kernel without its signature: it takes pointers and strides one by one."""
    first = node.body[0].lineno if _is_kernel(node) else node.lineno
    return (node.end_lineno or first) - first + 1


def test_no_file_is_beyond_the_hard_limit() -> None:
    long = {s.name: s.lines for s in (*product(), *suite()) if s.lines > FILE_HARD}
    assert long == {}


def test_files_are_small_as_a_rule() -> None:
    sizes = [source.lines for source in product() if not source.name.endswith("__init__.py")]
    beyond = sum(size > FILE_SOFT for size in sizes)
    assert statistics.median(sizes) <= FILE_MEDIAN
    assert beyond <= 0.1 * len(sizes), f"{beyond} of {len(sizes)} files are above {FILE_SOFT} lines"


def test_no_function_is_beyond_the_hard_limit() -> None:
    found = (entry for source in (*product(), *suite()) for entry in functions(source))
    assert {name: length(node) for name, node in found if length(node) > FUNCTION_HARD} == {}


def test_functions_are_small_as_a_rule() -> None:
    sizes = [length(node) for source in product() for _, node in functions(source)]
    beyond = sum(size > FUNCTION_SOFT for size in sizes)
    assert statistics.median(sizes) <= FUNCTION_MEDIAN
    assert beyond <= 0.03 * len(sizes), f"{beyond} functions are above {FUNCTION_SOFT} lines"


def test_signatures_are_short() -> None:
    def parameters(node: Function) -> int:
        given = node.args
        named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        return len([argument for argument in named if argument.arg not in ("self", "cls")])

    found = (entry for source in product() for entry in functions(source))
    assert {
        name: parameters(node)
        for name, node in found
        if parameters(node) > MOST_PARAMETERS and not _is_kernel(node)
    } == {}


def _is_kernel(node: Function) -> bool:
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_package_files_hold_no_logic() -> None:
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    wrong = [
        source.name
        for source in product()
        if source.name.endswith("__init__.py")
        and (source.lines > INIT_LINES or not all(isinstance(n, allowed) for n in source.tree.body))
    ]
    assert wrong == []


def test_each_module_says_in_a_few_lines_what_it_owns() -> None:
    def wrong(source: Source) -> bool:
        text = ast.get_docstring(source.tree)
        return text is None or len(text.strip().splitlines()[0]) < 10

    bare = [s.name for s in product() if not s.name.endswith("__init__.py") and wrong(s)]
    assert bare == []
