"""The floors of the house hold: who may import whom, which library lives where, and what no module may contain.

Each rule is a function from a root folder to the list of its violations, so that it runs on the tree and, in the tests
at the end, on a small tree that breaks it.
"""

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("autotune", "kernels", "search_spaces")  # the last two are installed inside autotune
LINKS: Final = ("kernels", "search_spaces", "results")

# From the bottom. A floor is a tuple of rooms, a room one string of modules of autotune. A module imports what lies on
# the floors below and in its own room; rooms of one floor do not know each other. A new module needs a room here.
FLOORS: Final = (
    (
        "version redaction errors rounding dtypes shape varlen_shape device space trial likeness operation "
        "implementation platforms units sheets package_files process_lock",
    ),
    ("models",),
    ("search_spaces",),
    ("kernels",),
    ("references ours own_kernels registry workload tuning_command",),
    ("table",),
    ("correctness timing roofline allocations",),
    ("executor",),
    ("search", "dispatch"),
    ("tuning", "call_shapes empty_batches eager_calls torch_ops functional varlen paged paged_cache", "warming"),
    ("decorated",),
    ("integrations",),
    ("console",),
    ("lab", "grid"),
    ("cli __main__",),
)
# What the floors alone would allow.
NOT_FOR: Final = {
    "search_spaces": {"models"},
    "kernels": {"models"},
    "dispatch": {"executor"},
}
# Who names a kernel of ours; all others reach kernels and spaces by the registry, as they reach a user's own.
KNOWS_OURS: Final = {
    "autotune.functional": "merge_attention, which is no operation that is tuned: its tensors' checks",
    "autotune.eager_calls": "calls without keys, and append_kv, which writes a cache and is no operation that is tuned",
    "autotune.empty_batches": "paged calls of no sequences, checked as kernels check theirs",
    "autotune.torch_ops": "the ops of our functions: their tensors' checks",
    "autotune.warming": "append_kv, compiled ahead beside paged attention",
    "autotune.paged_cache": "the cache of a user, laid out as the kernels read it",
    "autotune.dispatch.events": "Triton's compiles, which are noted as they happen",
    "autotune.executor.compiler": "keys in Triton's cache, which all processes must agree on",
    "autotune.executor.worker_answers": "the same",
    "autotune.executor.worker_race": "OverCopies, by which any baseline says what it has copied",
    "autotune.lab": "analyses of ours and of the baselines",
    "autotune.kernels": "ours",
    "autotune.search_spaces": "ours",
}
# A library is imported in these rooms only, whether at the top of a module or inside a function.
LIBRARY_ROOMS: Final = {
    "pyarrow": {"table"},
    "optuna": {"search"},
    "threadpoolctl": {"search"},
    "triton": {"kernels", "executor", "decorated"},
    "ray": {"grid"},
    "transformers": {"integrations"},
    "vllm": {"integrations"},
    "sglang": {"integrations"},
    "diffusers": {"integrations"},
    "click": {"console", "lab", "cli"},
    "rich": {"console", "lab", "cli"},
}
# Any module may import these at its top; every other library only inside the function that needs it.
TOP_LEVEL_LIBRARIES: Final = {"numpy", "torch", *LIBRARY_ROOMS}

BANNED_STEMS: Final = {"utils", "util", "common", "helpers", "helper", "misc"}
BANNED_MODULES: Final = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
BANNED_CALLS: Final = {"eval", "exec", "tempfile.mktemp", "os.system", "os.popen", "torch.load", "yaml.load"}
MAX_LINES: Final = 450

# What importing a module must not load: a serving process pays for none of these, and `autotune show` needs no GPU.
NOT_LOADED_BY: Final = {
    "autotune": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow"},
    "autotune.models": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow"},
    "autotune.search_spaces.flash_attention.triton": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow"},
    "autotune.dispatch": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow"},
    "autotune.warming": {"optuna", "sqlalchemy", "torch", "triton"},
    "autotune.grid.ray_engine": {"ray"},
    "autotune.integrations.transformers": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow", "transformers"},
    "autotune.integrations.hub": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow", "transformers"},
    "autotune.integrations.vllm": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow", "vllm"},
    "autotune.integrations.sglang": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow", "sglang"},
    "autotune.integrations.diffusers": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow", "diffusers"},
    "autotune.grid.planning": {"optuna", "sqlalchemy", "torch", "triton"},
    "autotune.console.shapes": {"optuna", "sqlalchemy", "torch", "triton", "pyarrow"},
}


class Module(NamedTuple):
    """A source file, its dotted name as installed, and its first part below ``autotune`` (empty: the package)."""

    path: Path
    name: str
    head: str
    tree: ast.Module


class Import(NamedTuple):
    """One imported module or name, as a dotted path, and whether it stands inside a function."""

    target: str
    line: int
    is_lazy: bool


@cache
def parse(text: str, name: str) -> ast.Module:
    return ast.parse(text, name)  # once for all rules


def modules(root: Path) -> Iterator[Module]:
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*.py")):  # does not follow the links inside autotune
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts if folder == "autotune" else ("autotune", *parts)
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            tree = parse(path.read_text(encoding="utf-8"), str(path))
            yield Module(path, ".".join(parts), parts[1] if len(parts) > 1 else "", tree)


def import_nodes(node: ast.AST, *, is_lazy: bool = False) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Find the import statements below a node, which are statements of statements; are they inside a function?"""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, is_lazy
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            inside = is_lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from import_nodes(child, is_lazy=inside)


@cache
def imports(module: Module) -> list[Import]:
    package = module.name.split(".")
    if module.path.name != "__init__.py":
        package.pop()
    found = []
    for node, is_lazy in import_nodes(module.tree):
        base = ""
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".") + "."
        found += [Import(f"{base}{alias.name}", node.lineno, is_lazy) for alias in node.names]
    return found


def place(head: str) -> tuple[int, str] | None:
    """The floor and the room of a module of autotune, given its first part."""
    for height, floor in enumerate(FLOORS):
        for room in floor:
            if head in room.split():
                return height, room
    return None


def where(root: Path, module: Module, line: int = 0) -> str:
    return f"{module.path.relative_to(root)}{f':{line}' if line else ''}"


def climbing_imports(root: Path) -> list[str]:
    """A module that imports from its own height or above, or stands on no floor."""
    found = []
    for module in modules(root):
        if not module.head:
            continue  # the package itself is the roof: what it exports, and what that may load, is tested below
        here = place(module.head)
        if here is None:
            found.append(
                f"{where(root, module)}: {module.head} is on no floor; add it to FLOORS in tests/test_layout.py"
            )
            continue
        for item in imports(module):
            package, _, rest = item.target.partition(".")
            if package != "autotune" or rest == "__version__":
                continue
            head = rest.partition(".")[0]
            there = place(head)
            if there is None:
                problem = "lies above every floor"  # a name of the package's public face
            elif head in NOT_FOR.get(module.head, ()):
                problem = "is not for it"
            elif there[0] > here[0]:
                problem = "is on a higher floor"
            elif there[0] == here[0] and there[1] != here[1]:
                problem = "is a sibling"
            else:
                continue
            found.append(f"{where(root, module, item.line)}: {module.head} imports {item.target}, which {problem}")
    return found


def circles(root: Path) -> list[str]:
    """Modules that import each other; said apart where only an import inside a function closes the circle."""
    found = {module.name: imports(module) for module in modules(root) if module.head}

    def owner(target: str) -> str:  # of a name, its module
        return target if target in found or "." not in target else owner(target.rpartition(".")[0])

    for kind, with_lazy in (("a circle", False), ("a circle by an import inside a function", True)):
        graph = {
            name: {owner(item.target) for item in items if with_lazy or not item.is_lazy} - {name}
            for name, items in found.items()
        }
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            return [f"{kind}: {' imports '.join(reversed(error.args[1]))}"]
    return []


def named_kernels(root: Path) -> list[str]:
    """A module that imports a kernel or space of ours by name."""
    ours = ("autotune.kernels.", "autotune.search_spaces.")
    return [
        f"{where(root, module, item.line)}: {item.target} is named by the registry alone"
        for module in modules(root)
        if not f"{module.name}.".startswith(tuple(f"{name}." for name in KNOWS_OURS))
        for item in imports(module)
        if item.target.startswith(ours)
    ]


def misplaced_libraries(root: Path) -> list[str]:
    """A library outside its rooms, or an unlisted one at the top of a module."""
    found = []
    for module in modules(root):
        for item in imports(module):
            library = item.target.partition(".")[0]
            if library == "autotune" or library in sys.stdlib_module_names:
                continue
            if module.head not in LIBRARY_ROOMS.get(library, {module.head}):
                found.append(
                    f"{where(root, module, item.line)}: {library} is for {sorted(LIBRARY_ROOMS[library])} alone"
                )
            elif library not in TOP_LEVEL_LIBRARIES and not item.is_lazy:
                found.append(f"{where(root, module, item.line)}: import {library} inside the function that needs it")
    return found


def broken_links(root: Path) -> list[str]:
    """A link of autotune that is absent, a copy, or points elsewhere."""
    found = []
    for name in LINKS:
        link = root / "autotune" / name
        if not link.is_symlink() or os.readlink(link) != f"../{name}":
            found.append(f"autotune/{name} is not a link to ../{name}")
    if (root / "kernels" / "__init__.py").exists():
        found.append("kernels/__init__.py exists: the folder would shadow Hugging Face's kernels")
    return found


def vague_names(root: Path) -> list[str]:
    """A module or package that is named after nothing it holds."""
    return [
        f"{where(root, module)}: name it after what it holds"
        for module in modules(root)
        if BANNED_STEMS & set(module.name.split("."))
    ]


def dotted(node: ast.expr) -> str:
    """Return a name and its attributes as they are written, nothing of another expression."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def dangerous_code(root: Path) -> list[str]:
    """Anything that runs code or reads objects from data, shells, and names of files that another may take."""
    found = []
    for module in modules(root):
        for item in imports(module):
            if item.target.partition(".")[0] in BANNED_MODULES or item.target in BANNED_CALLS:
                found.append(f"{where(root, module, item.line)}: import of {item.target}")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call):
                if dotted(node.func).removeprefix("builtins.") in BANNED_CALLS:
                    found.append(f"{where(root, module, node.lineno)}: call of {ast.unparse(node.func)}")
                for keyword in node.keywords:
                    if keyword.arg == "shell" and not (
                        isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                    ):
                        found.append(f"{where(root, module, node.lineno)}: shell={ast.unparse(keyword.value)}")
    return found


def long_modules(root: Path) -> list[str]:
    """A module beyond the limit of lines."""
    found = []
    for module in modules(root):
        lines = len(module.path.read_text(encoding="utf-8").splitlines())
        if lines > MAX_LINES:
            found.append(f"{where(root, module)}: {lines} lines, more than {MAX_LINES}")
    return found


RULES: Final[tuple[Callable[[Path], list[str]], ...]] = (
    climbing_imports,
    circles,
    named_kernels,
    misplaced_libraries,
    broken_links,
    vague_names,
    dangerous_code,
    long_modules,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_tree_keeps(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


def loaded_by(name: str, root: Path) -> set[str]:
    """Every module that a fresh interpreter has after importing this one."""
    code = f"import sys, {name}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


@pytest.mark.parametrize("name", NOT_LOADED_BY)
def test_import_loads_no_more_than_it_needs(name: str) -> None:
    assert NOT_LOADED_BY[name] & loaded_by(name, ROOT) == set()


def test_what_an_import_loads_is_seen(tmp_path: Path) -> None:
    write(tmp_path, "autotune/__init__.py", "import autotune.search\n")
    write(tmp_path, "autotune/search.py", "import optuna\n")
    write(tmp_path, "optuna.py", "")
    assert loaded_by("autotune", tmp_path) & NOT_LOADED_BY["autotune"] == {"optuna"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that keeps every rule."""
    write(tmp_path, "autotune/__init__.py", "from autotune.dispatch import get_kernel\n__version__ = '0'\n")
    write(tmp_path, "autotune/shape.py", "import math\nfrom autotune.errors import UsageError\n")
    write(tmp_path, "autotune/errors.py", "")
    write(tmp_path, "autotune/registry.py", "TARGET = 'autotune.search:run'\n")
    write(tmp_path, "autotune/table/__init__.py", "import pyarrow\nfrom . import store\n")
    write(tmp_path, "autotune/table/store.py", "from autotune import __version__\nfrom ..shape import Shape\n")
    write(tmp_path, "autotune/search/__init__.py", "import optuna\nfrom autotune import executor, table\n")
    write(tmp_path, "autotune/executor/__init__.py", "import torch, triton\n")
    write(tmp_path, "autotune/dispatch.py", "import autotune.table\ndef read():\n    import pynvml\n")
    write(tmp_path, "kernels/attention/forward.py", "import torch\nimport triton.language as tl\n")
    write(tmp_path, "search_spaces/attention.py", "from autotune.shape import Shape\n")
    (tmp_path / "results").mkdir()
    for name in LINKS:
        (tmp_path / "autotune" / name).symlink_to(f"../{name}")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_small_tree_keeps_every_rule(tree: Path) -> None:
    assert [violation for rule in RULES for violation in rule(tree)] == []


@pytest.mark.parametrize(
    ("rule", "name", "text", "message"),
    [
        (climbing_imports, "autotune/shape.py", "from autotune.table import store", "shape.py:1: shape imports"),
        (climbing_imports, "autotune/shape.py", "def f():\n    import autotune.cli", "shape.py:2"),
        (climbing_imports, "autotune/shape.py", "from autotune import get_kernel", "above every floor"),
        (climbing_imports, "autotune/shape.py", "import autotune", "above every floor"),
        (climbing_imports, "autotune/table/store.py", "from ..search import run", "autotune.search.run"),
        (climbing_imports, "autotune/table/__init__.py", "from ..search import run", "autotune.search.run"),
        (climbing_imports, "autotune/table/__init__.py", "from .. import search", "imports autotune.search,"),
        (climbing_imports, "autotune/dispatch.py", "from autotune import search", "a sibling"),
        (climbing_imports, "autotune/search/winner.py", "import autotune.dispatch", "a sibling"),
        (climbing_imports, "autotune/dispatch.py", "import autotune.executor", "not for it"),
        (climbing_imports, "autotune/integrations/ops.py", "import autotune.lab.trace", "a higher floor"),
        (climbing_imports, "kernels/attention/forward.py", "from autotune.table import read", "a higher floor"),
        (climbing_imports, "kernels/paged.py", "import autotune.models", "not for it"),
        (climbing_imports, "search_spaces/attention.py", "import autotune.kernels.attention", "a higher floor"),
        (climbing_imports, "autotune/attic.py", "", "attic is on no floor"),
        (circles, "autotune/errors.py", "from autotune.shape import Shape", "a circle: autotune."),
        (circles, "autotune/errors.py", "def f():\n    from . import shape", "a circle by an import inside a function"),
        (named_kernels, "autotune/table/export.py", "from ..search_spaces.attention import tiles", "export.py:1"),
        (named_kernels, "autotune/dispatch.py", "def f():\n    import autotune.kernels.paged", "dispatch.py:2"),
        (misplaced_libraries, "autotune/dispatch.py", "import pyarrow.parquet", "pyarrow is for ['table']"),
        (misplaced_libraries, "autotune/table/store.py", "def f():\n    import optuna", "store.py:2: optuna"),
        (misplaced_libraries, "search_spaces/attention.py", "import triton", "triton is for"),
        (
            misplaced_libraries,
            "autotune/__init__.py",
            "from rich import print",
            "rich is for ['cli',",
        ),
        (misplaced_libraries, "kernels/baselines/cudnn.py", "import cudnn", "inside the function"),
        (misplaced_libraries, "kernels/paged.py", "class A:\n    from flash_attn import f", "inside the function"),
        (broken_links, "kernels/__init__.py", "", "would shadow"),
        (vague_names, "autotune/table/utils.py", "", "autotune/table/utils.py"),
        (vague_names, "kernels/common/masks.py", "", "kernels/common/masks.py"),
        (dangerous_code, "autotune/shape.py", "import pickle", "pickle"),
        (dangerous_code, "kernels/paged.py", "def f():\n    from marshal import loads", "marshal.loads"),
        (dangerous_code, "autotune/shape.py", "x = eval('1')", "call of eval"),
        (dangerous_code, "search_spaces/attention.py", "exec('1')", "call of exec"),
        (dangerous_code, "autotune/shape.py", "import tempfile\ntempfile.mktemp()", "tempfile.mktemp"),
        (dangerous_code, "autotune/shape.py", "from tempfile import mktemp", "tempfile.mktemp"),
        (dangerous_code, "autotune/shape.py", "import subprocess\nsubprocess.run('ls', shell=True)", "shell=True"),
        (dangerous_code, "autotune/shape.py", "run('ls', shell=flag)", "shell=flag"),
        (long_modules, "autotune/shape.py", "x = 1\n" * (MAX_LINES + 1), "451 lines"),
    ],
)
def test_rule_finds_violation(
    tree: Path, rule: Callable[[Path], list[str]], name: str, text: str, message: str
) -> None:
    write(tree, name, text)
    violations = rule(tree)
    assert len(violations) == 1
    assert message in violations[0]


@pytest.mark.parametrize("spoil", ["absent", "copy", "elsewhere"])
def test_broken_link_is_found(tree: Path, spoil: str) -> None:
    link = tree / "autotune" / "results"
    link.unlink()
    if spoil == "copy":
        link.mkdir()
    elif spoil == "elsewhere":
        link.symlink_to(tree / "results")
    assert broken_links(tree) == ["autotune/results is not a link to ../results"]
