r"""The network anchored at the design matrix: moments through its layers, and the gradient of its expected error.

With the design matrix X at hand, :math:`S = I - W X + R`: every pair (W, S) is reachable, and ``R`` is what S departs
from the relation that proximal gradient steps obey. W (``encoder``) and R (``residual``) have independent Gaussian
entries. For a layer that receives mean ``e`` and variance ``s``, with :math:`u = y - X e`,

.. math::
    c_m = e + M_W u + M_R e, \qquad c_v = M_S^2 s + V_R (e^2 + s) + V_W (u^2 + X^2 s),

squares of matrices and vectors taken elementwise. Backwards, with :math:`g_m, g_v` the derivatives in
:math:`c_m, c_v`, :math:`a = V_W^T g_v` and :math:`b = V_R^T g_v`:

.. math::
    g_u = M_W^T g_m + 2 u \circ a, \quad g_e = g_m + M_R^T g_m - X^T g_u + 2 e \circ b, \quad
    g_s = (M_S^2)^T g_v + b + (X^2)^T a.

Everything is batched over the rows of the observations.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from bayeslista.moments import SoftThresholdGradients, soft_threshold_moments, soft_threshold_moments_and_gradients
from bayeslista.network import Gaussian, largest_moment


class AnchoredWeights(NamedTuple):
    """The belief about W and R."""

    encoder: Gaussian
    residual: Gaussian


class Propagated(NamedTuple):
    """Means and variances before and after the last threshold, each of shape (n, D)."""

    entering: Gaussian
    output: Gaussian


class AnchoredGradient(NamedTuple):
    """Derivatives in the weights' means and variances and in the threshold of every layer."""

    weights: AnchoredWeights
    shrinkage: Float[Array, " L"]


class _Matrices(NamedTuple):
    """What all layers share."""

    recurrent: Array  # M_S
    squared_recurrent: Array
    squared_design: Array


class _Entered(NamedTuple):
    """What entered a layer, and the slopes of its threshold."""

    mean: Array
    var: Array
    misfit: Array  # u
    misfit_power: Array  # u² + X² s
    power: Array  # e² + s
    slopes: SoftThresholdGradients


def recurrent_mean(weights: AnchoredWeights, design_matrix: Float[Array, "K D"]) -> Float[Array, "D D"]:
    """Mean of S.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R.
    design_matrix : array of shape (K, D)
        X.

    Returns
    -------
    array of shape (D, D)
        :math:`I - M_W X + M_R`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, recurrent_mean
    >>> from bayeslista.network import Gaussian
    >>> weights = AnchoredWeights(Gaussian(0.5 * jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> recurrent_mean(weights, jnp.eye(2)).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    identity = jnp.eye(design_matrix.shape[1], dtype=design_matrix.dtype)
    return identity - weights.encoder.mean @ design_matrix + weights.residual.mean


def _matrices(weights: AnchoredWeights, design_matrix: Array) -> _Matrices:
    recurrent = recurrent_mean(weights, design_matrix)
    return _Matrices(recurrent, recurrent * recurrent, design_matrix * design_matrix)


def _enter(
    weights: AnchoredWeights, design_matrix: Array, matrices: _Matrices, observations: Array, mean: Array, var: Array
) -> tuple[Gaussian, Array, Array, Array]:
    """Mean and variance before a threshold, with the misfit and the two powers they are made of."""
    misfit = observations - mean @ design_matrix.T
    misfit_power = misfit * misfit + var @ matrices.squared_design.T
    power = mean * mean + var
    entering_mean = mean + misfit @ weights.encoder.mean.T + mean @ weights.residual.mean.T
    entering_var = (
        var @ matrices.squared_recurrent.T + power @ weights.residual.var.T + misfit_power @ weights.encoder.var.T
    )
    # Where numbers outgrow what can be squared in this precision, they stay there: no infinity, no NaN.
    largest = largest_moment(mean)
    entering = Gaussian(jnp.clip(entering_mean, -largest, largest), jnp.minimum(entering_var, largest))
    return entering, misfit, misfit_power, power


@jax.jit
def propagate_anchored(
    weights: AnchoredWeights,
    design_matrix: Float[Array, "K D"],
    observations: Float[Array, "n K"],
    shrinkage: Float[Array, " L"],
) -> Propagated:
    """Mean and variance before and after the last layer's threshold, for a batch of observations.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R.
    design_matrix : array of shape (K, D)
        X.
    observations : array of shape (n, K)
        One observation a row.
    shrinkage : array of shape (L,)
        The threshold of each layer.

    Returns
    -------
    Propagated
        What enters the last threshold, and what comes out of it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, propagate_anchored
    >>> from bayeslista.network import Gaussian
    >>> weights = AnchoredWeights(Gaussian(0.5 * jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> propagate_anchored(weights, jnp.eye(2), jnp.array([[2.0, 4.0]]), jnp.zeros(3)).entering.mean.tolist()
    [[1.75, 3.5]]
    """
    matrices = _matrices(weights, design_matrix)

    def layer(before: Propagated, threshold: Array) -> tuple[Propagated, None]:
        entering = _enter(weights, design_matrix, matrices, observations, *before.output)[0]
        _, mean, var = soft_threshold_moments(*entering, threshold)
        return Propagated(entering, Gaussian(mean, var)), None

    nothing = jnp.zeros((len(observations), design_matrix.shape[1]), observations.dtype)
    return jax.lax.scan(layer, Propagated(*[Gaussian(nothing, nothing)] * 2), shrinkage)[0]


def expected_error_and_gradient(
    weights: AnchoredWeights,
    design_matrix: Float[Array, "K D"],
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    shrinkage: Float[Array, " L"],
    included: Float[Array, " n"],
) -> tuple[Float[Array, ""], Float[Array, "n D"], AnchoredGradient]:
    r"""Expected squared error of the output, summed over pairs and coefficients, and its gradient.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R.
    design_matrix : array of shape (K, D)
        X.
    observations, codes : array of shape (n, K) and (n, D)
        Pairs, one a row.
    shrinkage : array of shape (L,)
        The threshold of each layer.
    included : array of shape (n,)
        The weight of each pair; 0 leaves it out.

    Returns
    -------
    error : array
        :math:`\sum (\beta - e)^2 + s`.
    mean : array of shape (n, D)
        The output's mean e.
    gradient : AnchoredGradient
        Its derivatives.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, expected_error_and_gradient
    >>> from bayeslista.network import Gaussian
    >>> weights = AnchoredWeights(Gaussian(jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> pair = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0]])
    >>> error, _, gradient = expected_error_and_gradient(weights, jnp.eye(2), *pair, jnp.zeros(1), jnp.ones(1))
    >>> float(error), gradient.weights.encoder.mean.tolist()
    (4.0, [[0.0, 0.0], [4.0, 8.0]])
    """
    matrices = _matrices(weights, design_matrix)
    encoder, residual = weights

    def layer(output: tuple[Array, Array], threshold: Array) -> tuple[tuple[Array, Array], _Entered]:
        entering, misfit, misfit_power, power = _enter(weights, design_matrix, matrices, observations, *output)
        (_, mean, var), slopes = soft_threshold_moments_and_gradients(*entering, threshold)
        return (mean, var), _Entered(*output, misfit, misfit_power, power, slopes)

    nothing = jnp.zeros_like(codes)
    (mean, var), entered = jax.lax.scan(layer, (nothing, nothing), shrinkage)
    weight = included[:, None]
    difference = weight * (mean - codes)

    def back(carry: tuple[Array, Array], before: _Entered) -> tuple[Any, tuple[Array, ...]]:
        by_mean, by_var = carry
        slopes = before.slopes
        by_shrinkage = jnp.sum(by_mean * slopes.mean_by_shrinkage + by_var * slopes.var_by_shrinkage)
        through_mean = by_mean * slopes.mean_by_mean + by_var * slopes.var_by_mean
        through_var = by_mean * slopes.mean_by_var + by_var * slopes.var_by_var
        by_misfit_power = through_var @ encoder.var
        by_power = through_var @ residual.var
        by_misfit = through_mean @ encoder.mean + 2 * before.misfit * by_misfit_power
        earlier_mean = through_mean + through_mean @ residual.mean - by_misfit @ design_matrix
        earlier_var = through_var @ matrices.squared_recurrent + by_misfit_power @ matrices.squared_design
        earlier = earlier_mean + 2 * before.mean * by_power, earlier_var + by_power
        return earlier, (through_mean, through_var, by_shrinkage)

    start = 2 * difference, weight * jnp.ones_like(var)
    _, (through_mean, through_var, by_shrinkage) = jax.lax.scan(back, start, entered, reverse=True)

    def over_layers(through: Array, received: Array) -> Array:
        """Sum of outer products over layers and pairs: one product of matrices, not one a layer."""
        return through.reshape(-1, through.shape[-1]).T @ received.reshape(-1, received.shape[-1])

    through_square = 2 * matrices.recurrent * over_layers(through_var, entered.var)
    by_encoder = over_layers(through_mean, entered.misfit) - through_square @ design_matrix.T
    by_residual = over_layers(through_mean, entered.mean) + through_square
    gradient = AnchoredWeights(
        Gaussian(by_encoder, over_layers(through_var, entered.misfit_power)),
        Gaussian(by_residual, over_layers(through_var, entered.power)),
    )
    error = jnp.sum(weight * ((mean - codes) ** 2 + var))
    return error, mean, AnchoredGradient(gradient, by_shrinkage)
