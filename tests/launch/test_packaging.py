"""What is installed is what is imported, and the wheel holds what it should."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGES = ("server", "scheduler", "model_runner", "constrained", "sampling", "bench")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Guarded where they are imported: there only where CUDA is, or where torch brings it.
OPTIONAL = {"flashinfer", "triton"}
# These come with what is declared, in the version that it needs.
PART_OF = {"starlette": "fastapi", "pydantic_core": "pydantic"}


def imported(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - set(PACKAGES) - OPTIONAL


def declared(*extras: str) -> set[str]:
    requirements = [*PROJECT["dependencies"], *(r for extra in extras for r in PROJECT["optional-dependencies"][extra])]
    return {canonical(re.split(r"[\[<>=!~; ]", requirement)[0]) for requirement in requirements}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("folder", "extras"),
    [*((package, ("bench",) if package == "bench" else ()) for package in PACKAGES), ("tests", ("test", "bench"))],
)
def test_every_imported_package_is_a_declared_dependency(folder: str, extras: tuple[str, ...]) -> None:
    distributions = importlib.metadata.packages_distributions()
    allowed = declared(*extras)
    local = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {path.name for path in (ROOT / "tests").iterdir()}
    missing = {
        name
        for name in imported(ROOT / folder) - (local if folder == "tests" else set())
        if not {PART_OF.get(name, canonical(name)), *map(canonical, distributions.get(name, []))} & allowed
    }
    assert missing == set()


def test_the_wheel_holds_the_packages_and_no_tests(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(tmp_path), str(copy)]
    if importlib.util.find_spec("setuptools"):
        command.insert(4, "--no-build-isolation")
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("scansion-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        entry_points = archive.read(next(n for n in names if n.endswith("entry_points.txt"))).decode()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert {name for name in filter(None, files) if name.startswith(PACKAGES) and name.endswith(".jinja")} <= set(names)
    assert "scansion = server.cli:main" in entry_points


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not (ROOT / page).parent.joinpath(link).exists()] == []
