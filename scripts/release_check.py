"""Build what a release holds, install it in a fresh environment and try it there; nothing is left behind.

    python scripts/release_check.py

Sdist and wheel are built from this checkout, the wheel from the sdist; then the metadata is checked, the wheel is
installed, and the demonstration runs far from the sources. It takes about three minutes, and a network to install from.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
IN_SDIST = (
    "tests/conftest.py",
    "docs/index.md",
    "docs/conf.py",
    "examples/quickstart.py",
    "results/limit.md",
    "LICENSE",
)
IN_WHEEL = ("bayeslista/__init__.py", "bayeslista/py.typed", "bayeslista/estimators/__init__.py")


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command away from the sources; what it printed."""
    print("$", *(Path(command[0]).name, *command[1:]), flush=True)
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clean["PIP_CONSTRAINT"] = str(REPOSITORY / "constraints.txt")
    done = subprocess.run(command, cwd=cwd, env=clean, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + f"\nfailed with {done.returncode}")
    return done.stdout


def must_hold(archive: Path, names: set[str], wanted: tuple[str, ...]) -> None:
    """Complain of files that an archive ought to have."""
    missing = [name for name in wanted if name not in names]
    if missing:
        sys.exit(f"{archive.name} lacks {', '.join(missing)}.")
    print(f"{archive.name}: {len(names)} files, {archive.stat().st_size // 1024} KiB")


def check(folder: Path) -> None:
    """All of it, in a folder that is empty."""
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", REPOSITORY, cwd=folder)
    (sdist,), (wheel,) = (list((folder / "dist").glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
    with tarfile.open(sdist) as archive:
        must_hold(sdist, {name.partition("/")[2] for name in archive.getnames()}, IN_SDIST)
    with zipfile.ZipFile(wheel) as archive:
        must_hold(wheel, set(archive.namelist()), IN_WHEEL)
    print(run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=folder), end="")

    venv.create(folder / "fresh", with_pip=True)
    programs = folder / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel, cwd=folder)
    told = run(programs / "python", "-c", "import bayeslista as b; print(b.__version__, b.__file__)", cwd=folder)
    version, path = told.split()
    if version != wheel.name.split("-")[1] or folder.resolve() not in Path(path).resolve().parents:
        sys.exit(f"{path} has version {version}, and {wheel.name} was installed.")
    print(run(programs / "bayeslista", "--help", cwd=folder).strip().splitlines()[0].strip())
    print(run(programs / "python", "-m", "reproduction.demo", "--out", folder / "demo", cwd=folder))
    if not [*(folder / "demo").glob("*.html")]:
        sys.exit("The demonstration wrote no page.")
    print(f"bayeslista {version} can be released.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        check(Path(name))
