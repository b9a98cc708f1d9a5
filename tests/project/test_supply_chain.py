"""What is installed, what is run and who is spoken to: pinned versions, no code from data, no network."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = (ROOT / "constraints.txt").read_text().split("\n")[:-1]


def pinned():
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in PINS)}


def installed_dependencies(requirements):
    """Names of all that requirements bring with them, as far as it is installed."""
    waiting, found = [Requirement(text) for text in requirements], set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name == PROJECT["name"]:
            waiting += [Requirement(text) for extra in requirement.extras for text in extras()[extra]]
            continue
        key = name, tuple(sorted(requirement.extras))
        if key in found:
            continue
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        found.add(key)
        for text in distribution.requires or ():
            needed = Requirement(text)
            extras_asked = ("", *requirement.extras)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras_asked):
                waiting.append(needed)
    return {name for name, _ in found}


def extras():
    return PROJECT["optional-dependencies"]


class TestPins:
    def test_every_line_is_a_name_and_one_version(self):
        assert PINS
        assert [line for line in PINS if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.+!]*", line)] == []
        assert len(pinned()) == len(PINS)

    @pytest.mark.parametrize("extra", [None, *extras()])
    def test_all_that_is_installed_with_it_is_pinned(self, extra):
        installed = installed_dependencies(PROJECT["dependencies"] if extra is None else extras()[extra])
        assert installed or extra is not None
        assert sorted(installed - pinned().keys()) == []

    def test_every_requirement_says_from_which_version_on(self):
        asked = [*PROJECT["dependencies"], *(text for texts in extras().values() for text in texts)]
        loose = [text for text in asked if not Requirement(text).specifier and not Requirement(text).extras]
        assert loose == []

    def test_no_requirement_names_a_place(self):
        asked = [*PROJECT["dependencies"], *(text for texts in extras().values() for text in texts)]
        assert [text for text in asked if Requirement(text).url] == []

    def test_nothing_names_an_index_and_there_are_no_lock_files(self):
        if shutil.which("git") is None or not (ROOT / ".git").exists():
            pytest.skip("not a clone")
        files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        assert [
            name for name in files if re.search(r"(\.lock|[-_]lock\.\w+|^\.?pip\.conf|requirements.*\.txt)$", name)
        ] == []
        built = [
            name for name in files if re.search(r"(^|/)(Makefile|pyproject\.toml|constraints\.txt|.*\.ya?ml)$", name)
        ]
        assert "Makefile" in built
        for name in built:
            text = (ROOT / name).read_text()
            assert not re.search(r"index-url|find-links|trusted-host|git\+|https?://[^\s]*/simple", text), name


FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execv", "os.spawnl", "subprocess.getoutput",
    "joblib.load", "joblib.numpy_pickle", "pandas.read_pickle", "tempfile.mktemp",
}  # fmt: skip
FORBIDDEN_MODULES = {
    "pickle", "cloudpickle", "dill", "marshal", "shelve", "socket", "ssl", "urllib", "http", "requests",
    "ftplib", "telnetlib", "smtplib", "xmlrpc", "asyncio",
}  # fmt: skip
FORBIDDEN_ARGUMENTS = {"allow_pickle", "shell"}


def violations(source):
    """What a module does that could run code from data, or reach the network."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) in FORBIDDEN_CALLS:
                found.append(ast.unparse(node.func))
            for keyword in node.keywords:
                permitted = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in FORBIDDEN_ARGUMENTS and not permitted:
                    found.append(keyword.arg)
        imported = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [name for name in imported if name.split(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_CALLS]
    return found


class TestSources:
    def test_nothing_runs_code_from_data_or_opens_connections(self):
        assert len(SOURCES) > 80
        assert {str(path): found for path in SOURCES if (found := violations(path.read_text()))} == {}

    @pytest.mark.parametrize(
        "source",
        [
            "import pickle",
            "from pickle import loads",
            "def f():\n    import urllib.request",
            "x = eval(text)",
            "exec(text)",
            "import os\nos.system('ls')",
            "from os import system",
            "np.load(path, allow_pickle=True)",
            "np.load(path, allow_pickle=trusted)",
            "subprocess.run(text, shell=True)",
        ],
    )
    def test_what_would_be_forbidden_is_found(self, source):
        assert violations(source)

    def test_what_is_harmless_is_not(self):
        assert not violations("# eval(text)\n'import pickle'\nnp.load(path, allow_pickle=False)\nmodel.eval_()")


ALONE = """
import sys

watched = ["socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.bind", "urllib.Request"]

def refuse(event, arguments):
    if event in watched:
        raise SystemExit(f"{event} {arguments}")

sys.addaudithook(refuse)

import numpy as np
import bayeslista
import bayeslista.active, reproduction.demo, reproduction.reproduce, bayeslista.metrics, bayeslista.plots
import bayeslista.reports.model_report, bayeslista.out_of_core
from bayeslista.cli import app
from bayeslista.datasets import make_sparse_codes
from bayeslista.io.tables import read_table

data = make_sparse_codes(30, 5, 4, 6, random_state=0)
model = bayeslista.BayesLISTA(2, max_iter=1, random_state=0).fit(data.Y_train, data.B_train, checkpoint="checkpoint")
model.save("model")
np.save("table.npy", data.Y_test)
watched += ["pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "marshal.loads"]
again, table = bayeslista.load("model"), read_table("table.npy").values
del watched[5:]
assert (again.predict(table) == model.predict(data.Y_test)).all()
try:
    app(["predict", "table.npy", "--model", "model", "--out", "out.csv"])
except SystemExit as left:
    print("fine" if not left.code else left.code)
"""


def test_importing_fitting_and_predicting_reach_no_network_and_reading_runs_no_code(tmp_path):
    apart = ["unshare", "-rn"]  # where the kernel permits it, there is no network at all
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        apart = []
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [*apart, sys.executable, "-c", ALONE],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout.endswith("fine\n"), done.stderr
    assert (tmp_path / "out.csv").exists()
