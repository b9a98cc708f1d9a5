"""Functions that compile sooner: the same results, whatever options the version of XLA has."""

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
