import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import bayeslista

REPOSITORY = Path(__file__).parents[2]


def hatch(*arguments, cwd=REPOSITORY):
    """Run the build backend as it is installed; what it printed."""
    clean = {name: value for name, value in os.environ.items() if "SCM_PRETEND_VERSION" not in name}
    command = [sys.executable, "-m", "hatchling", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Sdist and wheel of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    hatch("build", "-d", folder)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


class TestVersion:
    @pytest.fixture
    def copy(self, tmp_path):
        """The least of the project that has a version, without git."""
        project = tmp_path / "project"
        (project / "src" / "bayeslista").mkdir(parents=True)
        for name in ("pyproject.toml", "README.md", "LICENSE", "src/bayeslista/__init__.py"):
            (project / name).write_bytes((REPOSITORY / name).read_bytes())
        return project

    @staticmethod
    def git(folder, *arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        subprocess.run(["git", *identity, *arguments], cwd=folder, env=clean, check=True, capture_output=True)

    @pytest.fixture
    def clone(self, copy):
        self.git(copy, "init", "--quiet")
        self.git(copy, "add", ".")
        self.git(copy, "commit", "--quiet", "--message", "first")
        return copy

    def test_is_known_and_of_the_usual_form(self):
        assert Version(bayeslista.__version__) >= Version("0.1.0.dev0")
        assert bayeslista.__version__ == version("bayeslista")

    def test_of_a_copy_without_git_is_that_of_the_next_release_in_development(self, copy):
        assert hatch("metadata", "version", cwd=copy) == "0.1.0.dev0"

    def test_of_a_clone_without_tags_is_one_in_development_too(self, clone):
        found = Version(hatch("metadata", "version", cwd=clone))
        assert found.is_devrelease
        assert found.base_version == "0.1.0"
        assert found.local is None

    def test_is_the_tag_where_there_is_one(self, clone):
        self.git(clone, "tag", "v1.2.3")
        assert hatch("metadata", "version", cwd=clone) == "1.2.3"
        self.git(clone, "commit", "--quiet", "--allow-empty", "--message", "second")
        found = Version(hatch("metadata", "version", cwd=clone))
        assert Version("1.2.3") < found < Version("1.2.4")

    def test_of_a_shallow_clone_is_found_all_the_same(self, clone, tmp_path):
        self.git(clone, "commit", "--quiet", "--allow-empty", "--message", "second")
        self.git(tmp_path, "clone", "--quiet", "--depth", "1", clone.as_uri(), "shallow")
        assert Version(hatch("metadata", "version", cwd=tmp_path / "shallow")).is_devrelease

    def test_survives_the_sdist(self, clone, tmp_path):
        self.git(clone, "tag", "v1.2.3")
        hatch("build", "-t", "sdist", "-d", tmp_path / "dist", cwd=clone)
        (sdist,) = (tmp_path / "dist").iterdir()
        with tarfile.open(sdist) as archive:
            archive.extractall(tmp_path, filter="data")
        assert hatch("metadata", "version", cwd=tmp_path / "bayeslista-1.2.3") == "1.2.3"


class TestArchives:
    def test_the_wheel_holds_the_package_and_nothing_else(self, archives):
        with zipfile.ZipFile(archives[1]) as wheel:
            names = set(wheel.namelist())
        assert {name.split("/")[0].partition("-")[0] for name in names} == {"bayeslista"}
        held = {name for name in names if name.startswith("bayeslista/")}
        files = [
            path for path in (REPOSITORY / "src").rglob("*") if path.is_file() and path.parent.name != "__pycache__"
        ]
        assert held == {path.relative_to(REPOSITORY / "src").as_posix() for path in files}
        assert "bayeslista/py.typed" in held
        assert any(name.endswith("licenses/LICENSE") for name in names)

    def test_the_wheel_says_what_it_needs_and_what_it_brings(self, archives):
        with zipfile.ZipFile(archives[1]) as wheel:
            (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
            told = Parser().parsestr(wheel.read(metadata).decode())
            scripts = wheel.read(metadata.replace("METADATA", "entry_points.txt")).decode()
        assert Version(told["Version"]) == Version(archives[1].name.split("-")[1])
        assert told["License-Expression"] == "BSD-3-Clause"
        assert told.get_payload().startswith("# bayeslista")
        assert "bayeslista = bayeslista.cli:main" in scripts
        needed = {r.name for r in map(Requirement, told.get_all("Requires-Dist")) if r.marker is None}
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert needed == {Requirement(line).name for line in project["dependencies"]}

    def test_the_sdist_has_tests_and_pages_but_not_what_is_large_or_made(self, archives):
        with tarfile.open(archives[0]) as sdist:
            names = {name.partition("/")[2] for name in sdist.getnames()}
        assert {"tests/project/test_release.py", "reproduction/layers.py", "docs/index.md", "docs/conf.py"} <= names
        assert {"results/limit.md", "results/standard/layers.csv", "CHANGELOG.md", "LICENSE"} <= names
        assert not [name for name in names if name.startswith(("results/paper", "docs/_build", ".ci", ".venv"))]
        assert archives[0].stat().st_size < 4_000_000

    def test_every_dependency_is_pinned(self):
        project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted = sum(project["optional-dependencies"].values(), project["dependencies"])
        pinned = {}
        for line in (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines():
            name, _, exact = line.partition("==")
            pinned[name.lower().replace("_", "-")] = exact
        for requirement in map(Requirement, wanted):
            if requirement.name != "bayeslista":
                assert requirement.specifier.contains(pinned[requirement.name.lower().replace("_", "-")])
