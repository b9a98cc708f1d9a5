r"""Moments through the layers, the evidence of one pair, and its gradient in the weights.

An unrolled network of L layers computes :math:`c_l = W y + S \hat\beta_{l-1}`, :math:`\hat\beta_l = h_{\lambda_l}(c_l)`
with :math:`\hat\beta_0 = 0`. Here every entry of W (``encoder``) and S (``recurrent``) is an independent Gaussian, and
each :math:`c_l` is taken to be Gaussian with the exact mean and variance of that sum of products:

.. math::
    c_m = M_W y + M_S e, \qquad c_v = V_W y^2 + M_S^2 s + V_S (e^2 + s),

where ``e`` and ``s`` are mean and variance of :math:`\hat\beta_{l-1}`. The number of layers is the length of the
vector of thresholds.

The gradient is written out by hand. With :math:`g_m, g_v` the derivatives in :math:`c_m, c_v` of a layer,

.. math::
    g_e = M_S^T g_m + 2 e \circ V_S^T g_v, \qquad g_s = (M_S^2 + V_S)^T g_v,

and the derivatives in the weights of all layers together are a few products of rank L, formed once after the sweep.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int

from bayeslista.moments import slab_moments_and_gradients, soft_threshold_moments_and_gradients
from bayeslista.quick_moments import Gaussian, Slopes, back_through, quick_moments, quick_moments_and_slopes

EvidenceForm = Literal["spike_slab", "gaussian"]

QUICK_VARIANCES = np.dtype(np.float32)  # where nobody needs more than seven digits of a variance

_HALF_LOG_TWO_PI = 0.9189385332046727
_FEW = 3  # layers that are compiled one by one, which spares a tenth of the time or more; a loop compiles sooner


class Weights(NamedTuple):
    """The belief about the network's two matrices, shared by all layers: W and S of the paper."""

    encoder: Gaussian
    recurrent: Gaussian


class Evidence(NamedTuple):
    """What a network knows of one pair, coefficient by coefficient.

    ``log_evidence`` is log Z at the noise given; ``raised_once`` and ``raised_twice`` are the same with one and two
    added to the shape of the noise's Gamma, which is what matching the moments of that Gamma needs.
    ``prediction`` is the mean of the network's output. ``saturated`` tells whether a variance outgrew what can be
    squared in this precision and was held there, as wide priors make it in deep networks.
    """

    log_evidence: Float[Array, " D"]
    raised_once: Float[Array, " D"]
    raised_twice: Float[Array, " D"]
    prediction: Float[Array, " D"]
    saturated: Bool[Array, ""]


class _Passed(NamedTuple):
    """What came out of a threshold, and its slopes, kept for the backward sweep."""

    output: Gaussian
    slopes: Slopes


def largest_moment(like: Array) -> float:
    """Where means and variances are held: the fourth root of the largest number, as they are squared and summed.

    Parameters
    ----------
    like : array
        Of the floating type in question.

    Returns
    -------
    float
        The bound.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.network import largest_moment
    >>> largest_moment(jnp.zeros(1)) > 1e9
    True
    """
    return float(jnp.finfo(like.dtype).max) ** 0.25


def _few(n_layers: int) -> bool:
    return n_layers <= _FEW


def _bounded(var: Array) -> Array:
    return jnp.minimum(var, largest_moment(var))


class _Spread(NamedTuple):
    """What variances are multiplied by in every layer: elementwise squares of the recurrent mean, and its variances."""

    squares: Float[Array, "D D"]
    var: Float[Array, "D D"]

    @classmethod
    def of(cls, recurrent: Gaussian, dtype: np.dtype | None) -> Self:
        """In a floating type, or their own."""
        squares, var = recurrent.mean * recurrent.mean, recurrent.var
        if dtype is None or dtype == var.dtype:
            return cls(squares, var)
        largest = float(np.finfo(dtype).max)
        return cls(*(jnp.minimum(part, largest).astype(dtype) for part in (squares, var)))


def _times(matrix: Float[Array, "m n"], vector: Float[Array, "..."], *, transposed: bool = False) -> Array:
    """A product in the floating type of the vector, whose range it has, with the digits of the matrix."""
    if matrix.dtype == vector.dtype:
        return vector @ matrix if transposed else matrix @ vector
    unit = jnp.maximum(jnp.max(jnp.abs(vector)), float(np.finfo(vector.dtype).tiny))
    small = (vector / unit).astype(matrix.dtype)
    return unit * (small @ matrix if transposed else matrix @ small).astype(vector.dtype)


def _layers(
    weights: Weights, spread: _Spread, observation: Float[Array, " K"], shrinkage: Float[Array, " L"]
) -> tuple[Gaussian, _Passed, Float[Array, " D"]]:
    """What enters the last threshold, what passed those before it, and the largest variances on the way."""
    (w_mean, w_var), (s_mean, _) = weights
    drive_mean = w_mean @ observation
    drive_var = w_var @ (observation * observation)

    def layer(carry: tuple[Gaussian, Array], threshold: Array) -> tuple[tuple[Gaussian, Array], _Passed]:
        entering, largest = carry
        output, slopes = quick_moments_and_slopes(*entering, threshold)
        e, s = output
        mean = drive_mean + s_mean @ e
        var = _bounded(drive_var + _times(spread.squares, s) + _times(spread.var, e * e + s))
        return (Gaussian(mean, var), jnp.maximum(largest, var)), _Passed(output, slopes)

    first = Gaussian(drive_mean, _bounded(drive_var))
    few = _few(len(shrinkage) - 1)
    (last, largest), passed = jax.lax.scan(layer, (first, first.var), shrinkage[:-1], unroll=few)
    return last, passed, largest


class GradientFactors(NamedTuple):
    """Vectors whose outer products, summed over layers, are the derivatives in the weights.

    Attributes
    ----------
    observation : array of shape (K,)
        That of the pair.
    by_drive : Gaussian of shape (D,)
        Derivatives in mean and variance of W y.
    by_entering : Gaussian of shape (D, L - 1), or (L - 1, D) where layers are few
        Derivatives in mean and variance of what enters every threshold but the first.
    passed : Gaussian of shape (L - 1, D)
        Mean and variance of what came out of the threshold before.
    """

    observation: Float[Array, " K"]
    by_drive: Gaussian
    by_entering: Gaussian
    passed: Gaussian

    def encoder(self) -> Gaussian:
        """Derivatives in mean and variance of W."""
        squares = self.observation * self.observation
        return Gaussian(jnp.outer(self.by_drive.mean, self.observation), jnp.outer(self.by_drive.var, squares))

    def recurrent(self, mean: Float[Array, "D D"]) -> Gaussian:
        """Derivatives in mean and variance of S, which has this mean, or in those of the rows that factors are of."""
        (by_mean, by_var), (e, s) = self.by_entering, self.passed
        return Gaussian(self._summed(by_mean, e) + 2 * mean * self._summed(by_var, s), self._summed(by_var, e * e + s))

    def of_rows(self, begin: Int[Array, ""], n_rows: int) -> Self:
        """The factors of some rows of S."""
        axis = int(_few(len(self.passed.mean)))
        part = jax.tree.map(lambda all_: jax.lax.dynamic_slice_in_dim(all_, begin, n_rows, axis), self.by_entering)
        return self._replace(by_entering=part)

    @staticmethod
    def _summed(left: Array, right: Array) -> Array:
        """Outer products summed over layers; if few, a loop over elements takes half the time of a matrix product."""
        if not _few(len(right)):
            return left @ right
        products = (jnp.outer(*rows) for rows in zip(left, right, strict=True))
        return sum(products, jnp.zeros((left.shape[1], right.shape[1]), left.dtype))


class _Output(NamedTuple):
    """The evidence at one noise level and its slopes in the mean and variance of the last layer's input."""

    log_evidence: Array
    by_mean: Array
    by_var: Array


_AtNoise = Callable[[Array, Array], _Output]


def _log_normal(residual: Array, var: Array) -> Array:
    return -0.5 * jnp.log(var) - 0.5 * residual * residual / var - _HALF_LOG_TWO_PI


def _normal_slopes(residual: Array, var: Array) -> tuple[Array, Array]:
    """Derivatives of `_log_normal` in the mean and the variance."""
    scaled = residual / var
    return scaled, 0.5 * (scaled * scaled - 1 / var)


def _gaussian_output(entering: Gaussian, threshold: Array, code: Array) -> tuple[Array, _AtNoise]:
    """A Gaussian with the output's mean and variance."""
    (_, mean, output_var), slopes = soft_threshold_moments_and_gradients(*entering, threshold)
    residual = code - mean

    def at_noise(shape: Array, rate: Array) -> _Output:
        var = output_var + rate / (shape - 1)
        by_mean, by_var = _normal_slopes(residual, var)
        return _Output(
            _log_normal(residual, var),
            by_mean * slopes.mean_by_mean + by_var * slopes.var_by_mean,
            by_mean * slopes.mean_by_var + by_var * slopes.var_by_var,
        )

    return mean, at_noise


def _spike_slab_output(entering: Gaussian, threshold: Array, code: Array) -> tuple[Array, _AtNoise]:
    """The paper's: a Student's t about zero for the spike, a Gaussian for the slab."""
    slab, slopes = slab_moments_and_gradients(*entering, threshold)
    residual = code - slab.mean

    def at_noise(shape: Array, rate: Array) -> _Output:
        log_peak = gammaln(shape + 0.5) - gammaln(shape) - 0.5 * jnp.log(rate) - _HALF_LOG_TWO_PI
        log_peak = jax.lax.optimization_barrier(log_peak)  # one number, not one for every coefficient
        log_spike = log_peak - (shape + 0.5) * jnp.log(1 + 0.5 * code * code / rate)
        var = slab.var + rate / (shape - 1)
        with_spike = slab.log_prob_inactive + log_spike
        with_slab = slab.log_prob_active + _log_normal(residual, var)
        smaller = jnp.exp(-jnp.abs(with_spike - with_slab))  # of the two, over the larger
        log_evidence = jnp.maximum(with_spike, with_slab) + jnp.log(1 + smaller)
        share = 1 / (1 + smaller)
        in_spike, in_slab = (
            jnp.where(larger, share, smaller * share) for larger in (with_spike >= with_slab, with_spike < with_slab)
        )
        by_mean, by_var = _normal_slopes(residual, var)

        def slope(inactive: Array, active: Array, slab_mean: Array, slab_var: Array) -> Array:
            of_slab = active + by_mean * slab_mean + by_var * slab_var
            # A side without a share has a slope that may be as large as numbers get.
            return jnp.where(in_spike > 0, in_spike * inactive, 0) + jnp.where(in_slab > 0, in_slab * of_slab, 0)

        return _Output(
            log_evidence,
            slope(
                slopes.log_prob_inactive_by_mean,
                slopes.log_prob_active_by_mean,
                slopes.mean_by_mean,
                slopes.var_by_mean,
            ),
            slope(
                slopes.log_prob_inactive_by_var,
                slopes.log_prob_active_by_var,
                slopes.mean_by_var,
                slopes.var_by_var,
            ),
        )

    return jnp.exp(slab.log_prob_active) * slab.mean, at_noise


# Of each form: the mean of the output, and the evidence as a function of the noise's Gamma.
_OUTPUTS: dict[EvidenceForm, Callable[[Gaussian, Array, Array], tuple[Array, _AtNoise]]] = {
    "spike_slab": _spike_slab_output,
    "gaussian": _gaussian_output,
}


@partial(jax.jit, static_argnames="form")
def evidence_and_gradient(
    weights: Weights,
    observation: Float[Array, " K"],
    code: Float[Array, " D"],
    shrinkage: Float[Array, " L"],
    noise_shape: Float[Array, ""],
    noise_rate: Float[Array, ""],
    form: EvidenceForm = "spike_slab",
) -> tuple[Evidence, Weights]:
    r"""Log evidence of one pair and its gradient in every mean and variance of the weights.

    The noise has precision :math:`\gamma \sim \mathrm{Gam}(a, b)`. In the form ``"spike_slab"``

    .. math:: \log Z = \sum_d \log[\omega_d T(\beta_d; 0, b/a, 2a) + (1-\omega_d) N(\beta_d; m_d, v_d + b/(a-1))],

    and in the form ``"gaussian"`` the output's spike and slab is replaced by the Gaussian of the same mean and
    variance: :math:`\log Z = \sum_d \log N(\beta_d; e_d, s_d + b/(a-1))`.

    Parameters
    ----------
    weights : Weights
        Gaussian belief about W and S.
    observation, code : array of shape (K,) and (D,)
        The pair.
    shrinkage : array of shape (L,)
        The threshold of each layer.
    noise_shape, noise_rate : array
        Parameters ``a > 1`` and ``b`` of the noise precision's Gamma.
    form : {"spike_slab", "gaussian"}
        Which evidence.

    Returns
    -------
    Evidence
        log Z of every coefficient, which sum to that of the pair, and what the noise update needs.
    Weights
        The derivatives, in the shape of the weights.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.network import Gaussian, Weights, evidence_and_gradient
    >>> weights = Weights(Gaussian(jnp.eye(2), jnp.ones((2, 2))), Gaussian(jnp.zeros((2, 2)), jnp.ones((2, 2))))
    >>> pair = jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0])
    >>> evidence, gradient = evidence_and_gradient(weights, *pair, jnp.array([0.1, 0.1]), 6.0, 6.0)
    >>> gradient.encoder.mean.shape
    (2, 2)
    """
    evidence, factors = evidence_and_factors(weights, observation, code, shrinkage, noise_shape, noise_rate, form)
    return evidence, Weights(factors.encoder(), factors.recurrent(weights.recurrent.mean))


def evidence_and_factors(
    weights: Weights,
    observation: Float[Array, " K"],
    code: Float[Array, " D"],
    shrinkage: Float[Array, " L"],
    noise_shape: Float[Array, ""],
    noise_rate: Float[Array, ""],
    form: EvidenceForm = "spike_slab",
    variance_dtype: np.dtype | None = None,
) -> tuple[Evidence, GradientFactors]:
    """Log evidence of one pair, and what its gradient is made of.

    Parameters
    ----------
    weights, observation, code, shrinkage, noise_shape, noise_rate, form
        As in :func:`evidence_and_gradient`.
    variance_dtype : dtype, optional
        The floating type of the matrices that variances of a layer are multiplied by, that of the weights if not given.
        In single precision variances and their derivatives have seven digits, and larger matrices stay in the cache.

    Returns
    -------
    Evidence, GradientFactors
        As in :func:`evidence_and_gradient`, but for the products.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.network import Gaussian, Weights, evidence_and_factors
    >>> weights = Weights(Gaussian(jnp.eye(2), jnp.ones((2, 2))), Gaussian(jnp.zeros((2, 2)), jnp.ones((2, 2))))
    >>> pair = jnp.array([1.0, 0.0]), jnp.array([1.0, 0.0])
    >>> _, factors = evidence_and_factors(weights, *pair, jnp.full(3, 0.1), 6.0, 6.0)
    >>> factors.by_entering.mean.shape, factors.passed.mean.shape
    ((2, 2), (2, 2))
    """
    spread = _Spread.of(weights.recurrent, variance_dtype)
    last, passed, largest = _layers(weights, spread, observation, shrinkage)
    prediction, at_noise = _OUTPUTS[form](last, shrinkage[-1], code)
    log_evidence, by_mean, by_var = at_noise(noise_shape, noise_rate)
    evidence = Evidence(
        log_evidence,
        at_noise(noise_shape + 1, noise_rate).log_evidence,
        at_noise(noise_shape + 2, noise_rate).log_evidence,
        prediction,
        jnp.max(largest) >= largest_moment(largest),
    )
    s_mean = weights.recurrent.mean

    def back(carry: Gaussian, before: _Passed) -> tuple[Gaussian, Gaussian]:
        by_mean, by_var = carry
        (e, _), slopes = before
        through_var = _times(spread.var, by_var, transposed=True)
        by_e = by_mean @ s_mean + 2 * e * through_var
        by_s = _times(spread.squares, by_var, transposed=True) + through_var
        return Gaussian(*back_through(slopes, e, by_e, by_s)), carry

    few = _few(len(shrinkage) - 1)
    by_first, by_rest = jax.lax.scan(back, Gaussian(by_mean, by_var), passed, reverse=True, unroll=few)
    # What is divided XLA makes once, all else again for every row of an outer product. Vectors of many layers are
    # turned, which halves the time of their products.
    one = noise_shape / noise_shape
    by_drive = Gaussian(*((first + jnp.sum(rest, axis=0)) / one for first, rest in zip(by_first, by_rest, strict=True)))
    by_entering = by_rest if few else jax.tree.map(jnp.transpose, by_rest)
    return evidence, jax.lax.optimization_barrier(GradientFactors(observation, by_drive, by_entering, passed.output))


@partial(jax.jit, static_argnames="form")
def log_evidence(
    weights: Weights,
    observation: Float[Array, " K"],
    code: Float[Array, " D"],
    shrinkage: Float[Array, " L"],
    noise_shape: Float[Array, ""],
    noise_rate: Float[Array, ""],
    form: EvidenceForm = "spike_slab",
) -> Float[Array, ""]:
    """Log evidence of one pair alone, without its gradient.

    Parameters
    ----------
    weights, observation, code, shrinkage, noise_shape, noise_rate, form
        As in :func:`evidence_and_gradient`.

    Returns
    -------
    array
        log Z, summed over coefficients.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.network import Gaussian, Weights, log_evidence
    >>> exact = Gaussian(jnp.eye(1), jnp.zeros((1, 1)))
    >>> value = log_evidence(
    ...     Weights(exact, exact), jnp.ones(1), jnp.ones(1), jnp.zeros(1), 2.0, 1.0, "gaussian"
    ... )
    >>> round(float(value), 4)  # the standard normal density at zero
    -0.9189
    """
    last, _, _ = _layers(weights, _Spread.of(weights.recurrent, None), observation, shrinkage)
    _, at_noise = _OUTPUTS[form](last, shrinkage[-1], code)
    return jnp.sum(at_noise(noise_shape, noise_rate).log_evidence)


@jax.jit
def propagate(weights: Weights, observations: Float[Array, "n K"], shrinkage: Float[Array, " L"]) -> Gaussian:
    """Mean and variance of the last layer's input, before its threshold, for a batch of observations.

    Soft-thresholding this Gaussian with ``shrinkage[-1]`` gives the network's output: its moments by
    :func:`bayeslista.moments.soft_threshold_moments`, its spike and slab by :func:`bayeslista.moments.slab_moments`.

    Parameters
    ----------
    weights : Weights
        Gaussian belief about W and S.
    observations : array of shape (n, K)
        One observation a row.
    shrinkage : array of shape (L,)
        The threshold of each layer.

    Returns
    -------
    Gaussian
        Mean and variance, each of shape (n, D).

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.network import Gaussian, Weights, propagate
    >>> exact = Gaussian(jnp.eye(2), jnp.zeros((2, 2)))
    >>> propagate(Weights(exact, exact), jnp.array([[1.0, 2.0]]), jnp.array([0.5, 0.5])).mean
    Array([[1.5, 3.5]], dtype=float32)
    """
    (w_mean, w_var), (s_mean, s_var) = weights
    drive = Gaussian(observations @ w_mean.T, _bounded((observations * observations) @ w_var.T))
    squared = s_mean * s_mean

    def layer(entering: Gaussian, threshold: Array) -> tuple[Gaussian, None]:
        e, s = quick_moments(*entering, threshold)
        mean = drive.mean + e @ s_mean.T
        var = _bounded(drive.var + s @ squared.T + (e * e + s) @ s_var.T)
        return Gaussian(mean, var), None

    return jax.lax.scan(layer, drive, shrinkage[:-1])[0]


def relative_errors(
    predicted: Float[Array, "... D"], codes: Float[Array, "... D"]
) -> tuple[Float[Array, "..."], Bool[Array, "..."]]:
    """How far predictions are from codes, in units of the codes' norms.

    Parameters
    ----------
    predicted, codes : array of shape (..., D)
        One code a row.

    Returns
    -------
    errors : array
        ``‖prediction − code‖ / ‖code‖``, 0 where the code is zero.
    informative : array of bool
        Where the code is not zero.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.network import relative_errors
    >>> errors, informative = relative_errors(jnp.zeros((2, 1)), jnp.array([[0.0], [3.0]]))
    >>> errors.tolist(), informative.tolist()
    ([0.0, 1.0], [False, True])
    """
    norms = jnp.linalg.norm(codes, axis=-1)
    informative = norms > 0
    errors = jnp.linalg.norm(predicted - codes, axis=-1) / jnp.where(informative, norms, 1)
    return jnp.where(informative, errors, 0), informative
