"""Functions that compile sooner: the same results, whatever options the version of XLA has."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from bayeslista.numerics import compilation as _compilation
from bayeslista.numerics.compilation import fast_compiled


@pytest.fixture(autouse=True)
def _forget():
    _compilation._supported_options.cache_clear()
    yield
    _compilation._supported_options.cache_clear()


def options(monkeypatch, flags="", older_loops=True):
    monkeypatch.setenv("XLA_FLAGS", flags)
    return set(_compilation._supported_options(older_loops))


def test_options_are_those_that_are_not_set_already(monkeypatch):
    assert options(monkeypatch) == {"xla_backend_optimization_level", "xla_cpu_use_fusion_emitters"}
    assert options(monkeypatch, older_loops=False) == {"xla_backend_optimization_level", "xla_cpu_prefer_vector_width"}
    _compilation._supported_options.cache_clear()
    assert options(monkeypatch, "--xla_backend_optimization_level=0") == {"xla_cpu_use_fusion_emitters"}


def test_an_option_unknown_to_this_version_is_left_out(monkeypatch):
    monkeypatch.setattr(_compilation, "_FEWER_PASSES", {"xla_of_another_time": 1})
    assert options(monkeypatch) == {"xla_cpu_use_fusion_emitters"}
    assert float(fast_compiled(lambda x: 2 * x)(3.0)) == 6


def test_other_devices_are_left_alone(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert options(monkeypatch) == set()


def test_one_compilation_serves_equal_shapes_and_it_can_be_part_of_another():
    double = fast_compiled(lambda x: 2 * x)
    assert [float(double(jnp.ones(3))[0]), float(double(jnp.zeros(3))[0])] == [2, 0]
    assert double._cache_size() == 1
    assert float(jax.grad(lambda x: double(x) ** 2)(1.0)) == 8
    assert float(jax.jit(lambda x: double(x) + 1)(1.0)) == 3


def test_what_a_function_itself_refuses_is_raised_unchanged():
    def refuse(x):
        raise ValueError("not such a number")

    with pytest.raises(ValueError, match="not such a number"):
        fast_compiled(refuse)(1.0)


def test_what_is_compiled_is_kept_in_the_folder_that_is_asked_for(tmp_path):
    code = (
        "import sys, jax, bayeslista\n"
        "assert jax.config.jax_compilation_cache_dir is None\n"
        "jax.jit(lambda x: x + 1)(1.0)\n"
        "print(bayeslista.cache_compiled(sys.argv[1]))\n"
        "jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)\n"
        "jax.jit(lambda x: x * 2 + 1)(1.0)\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "new")], env=clean, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / "new")
    assert list((tmp_path / "new").iterdir())
