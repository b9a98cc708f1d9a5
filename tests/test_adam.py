"""Adam's direction against that of optax."""

import jax
import numpy as np
import optax
import pytest

from bayeslista.inference.adam import direction, no_moments, squared_norm


# In single precision 1 − 0.999ⁿ, by which both divide, is known to 6e-8 / 0.001 after the first steps.
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 6e-5)])
def test_directions_are_those_of_optax(dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        compare_with_optax(dtype, tolerance)


def compare_with_optax(dtype, tolerance):
    random = np.random.default_rng(0)
    parameters = {"matrix": np.zeros((3, 2), dtype), "vector": np.zeros(4, dtype)}
    rule = optax.scale_by_adam()
    state, moments = rule.init(parameters), no_moments(parameters)
    for scale in (1.0, 1e-6, 1e3, 0.0, 2.0):
        gradient = jax.tree.map(lambda part, scale=scale: scale * random.normal(size=part.shape), parameters)
        gradient = jax.tree.map(lambda part: part.astype(dtype), gradient)
        expected, state = rule.update(gradient, state)
        found, moments = direction(gradient, moments)
        for name in parameters:
            np.testing.assert_allclose(found[name], expected[name], rtol=tolerance, atol=1e-12)
    assert int(moments.n_steps) == 5


def test_the_norm_of_a_gradient_tells_whether_it_is_finite():
    assert float(squared_norm((np.ones(2), np.full(1, 3.0)))) == 11.0
    assert not np.isfinite(squared_norm((np.ones(2), np.array([np.inf, 1.0]))))
    assert not np.isfinite(squared_norm((np.array([np.nan]), np.ones(1))))
