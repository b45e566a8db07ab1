"""The rules of the house that a machine can check."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "depthroute"
LEAVES = {"errors", "schema", "launch"}
# What each part may import of ours, besides itself and the leaves.
ALLOWED = {
    "errors": set(),
    "launch": set(),
    "schema": set(),
    "ops": set(),
    "watched": set(),
    "depth_read": {"ops"},
    "residuals": {"ops", "watched"},
    "model": {"ops", "residuals", "watched"},
    "presets": set(),
    "data": set(),
    "runs": set(),
    "config": {"ops", "model", "presets", "data"},
    "train": {"model", "config", "presets", "data", "runs"},
    "probe": {"ops", "residuals", "train", "model", "config", "data", "runs"},
    "study": {"train", "model", "config", "presets", "data", "runs"},
    "report": {"study", "runs"},
    "interop": {"train", "model", "config", "data", "runs"},
    "evaluation": {"study", "train", "model", "config", "data", "runs"},
    "bench": {"config", "model", "ops", "presets", "residuals", "runs"},
    "cli": {
        "bench",
        "evaluation",
        "interop",
        "ops",
        "probe",
        "report",
        "study",
        "train",
        "model",
        "config",
        "presets",
        "data",
        "runs",
    },
    "__init__": {"ops", "depth_read", "residuals", "model", "presets", "train"},
    "__main__": {"cli"},
}
NO_TORCH = {"errors", "schema", "launch", "presets", "data", "runs", "report"}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_run_one_way():
    wrong = []
    for path in SOURCES:
        for name in imports(path):
            words = name.split(".")
            if words[0] != "depthroute" or len(words) < 2 or (words[1] == "__version__"):
                continue
            if words[1] not in ALLOWED[part(path)] | LEAVES | {part(path)}:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_the_leaves_do_not_import_torch():
    leaves = [path for path in SOURCES if part(path) in NO_TORCH]
    wrong = [str(path) for path in leaves if "torch" in {name.split(".")[0] for name in imports(path)}]
    assert wrong == []


def test_the_model_names_no_residual():
    for path in (PACKAGE / "model").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not any(word in text for word in ("additive", "attnres", "Additive", "AttentionResidual")), path


def test_only_ops_names_an_implementation():
    for path in SOURCES:
        if part(path) != "ops":
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
            assert not words & {"reference", "compiled", "native", "triton"}, path


def test_no_file_is_above_350_lines():
    files = [*SOURCES, *PACKAGE.rglob("*.cpp"), *(ROOT / "tests").glob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    assert {str(path): n for path in files if (n := len(path.read_text(encoding="utf-8").splitlines())) > 350} == {}


def test_no_file_is_a_drawer():
    drawers = {"utils", "helpers", "manager", "common", "misc"}
    assert not drawers & {path.stem for path in SOURCES}


def test_nothing_is_left_to_do_in_a_comment():
    assert [str(path) for path in SOURCES if {"TODO", "FIXME", "XXX"} & set(path.read_text().split())] == []
