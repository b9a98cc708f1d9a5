"""The command line keeps what JAX compiles, where it may."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bayeslista.cli import main
from bayeslista.cli._jax_cache import keep_compiled

FOLDER, SHORTEST, MOST = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_COMPILATION_CACHE_MAX_SIZE",
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home of the test's own, and an environment that says nothing and comes back afterwards."""
    monkeypatch.setattr(os, "environ", {"HOME": str(tmp_path)})
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return tmp_path


def test_the_cache_is_in_the_home_and_has_a_limit(home):
    keep_compiled()
    assert os.environ[FOLDER] == str(home / ".cache" / "bayeslista" / "jax")
    assert Path(os.environ[FOLDER]).is_dir()
    assert float(os.environ[SHORTEST]) == 0.1
    assert int(os.environ[MOST]) > 0


def test_the_cache_goes_where_caches_go(home):
    os.environ["XDG_CACHE_HOME"] = str(home / "elsewhere")
    keep_compiled()
    assert os.environ[FOLDER] == str(home / "elsewhere" / "bayeslista" / "jax")


@pytest.mark.parametrize("folder", ["", "mine"])
def test_who_says_where_or_nowhere_is_heard(home, folder):
    os.environ.update({FOLDER: folder})
    keep_compiled()
    assert os.environ[FOLDER] == folder
    assert SHORTEST not in os.environ
    assert not list(home.iterdir())


def test_other_settings_of_the_user_stay():
    os.environ.update({SHORTEST: "3", MOST: "5"})
    keep_compiled()
    assert (os.environ[SHORTEST], os.environ[MOST]) == ("3", "5")


def test_without_filelock_there_is_no_limit_which_jax_would_refuse(monkeypatch):
    monkeypatch.setattr("bayeslista.cli._jax_cache.find_spec", lambda _: None)
    keep_compiled()
    assert FOLDER in os.environ
    assert MOST not in os.environ


def test_a_home_that_cannot_be_written_is_no_matter(home, monkeypatch):
    (home / ".cache").touch()
    keep_compiled()
    assert FOLDER not in os.environ
    (home / ".cache").unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    keep_compiled()
    assert FOLDER not in os.environ


def test_the_program_asks_for_the_cache_before_it_runs(home, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bayeslista", "--version"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert FOLDER in os.environ


def test_jax_heeds_it(home):
    script = (
        "from bayeslista.cli._jax_cache import keep_compiled; keep_compiled(); import jax; "
        "print(jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_min_compile_time_secs)"
    )
    told = {"XDG_CACHE_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=told, check=True, capture_output=True, text=True)
    assert done.stdout == f"{home / 'bayeslista' / 'jax'} 0.1\n"
