r"""The evidence of one pair, and its gradient in the weights by a backward sweep.

The noise has precision :math:`\gamma \sim \mathrm{Gam}(a, b)`. In the paper's form, ``"spike_slab"``,

.. math:: \log Z = \sum_d \log[\omega_d T(\beta_d; 0, b/a, 2a) + (1-\omega_d) N(\beta_d; m_d, v_d + b/(a-1))],

with :math:`\omega_d` the probability of the spike and :math:`m_d, v_d` the moments of the slab. In the form
``"gaussian"`` the output's spike and slab is replaced by the Gaussian of the same mean and variance:
:math:`\log Z = \sum_d \log N(\beta_d; e_d, s_d + b/(a-1))`.

The gradient is written out. With :math:`g_m, g_v` the derivatives in :math:`c_m, c_v` of a layer,

.. math::
    g_e = M_S^T g_m + 2 e \circ V_S^T g_v, \qquad g_s = (M_S^2 + V_S)^T g_v,

and the derivatives in the weights of all layers are products of rank L, formed once after the sweep:

.. math::
    \partial_{M_S} = \sum_l g_m e^T + 2 M_S \circ \sum_l g_v s^T, \qquad \partial_{V_S} = \sum_l g_v (e^2 + s)^T .
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int

from bayeslista.bayes_lista.adf.layers import (
    FreeWeights,
    LayerOutputs,
    VarianceMatrices,
    few_layers,
    matrix_product,
    propagate_pair,
)
from bayeslista.numerics.precision import AnyArray, largest_moment
from bayeslista.numerics.soft_threshold import slab_moments_and_gradients, soft_threshold_moments_and_gradients
from bayeslista.numerics.soft_threshold_fast import Gaussian, moments_backward

EvidenceForm = Literal["spike_slab", "gaussian"]

_HALF_LOG_TWO_PI = 0.9189385332046727


class Evidence(NamedTuple):
    """log Z of every coefficient at noise shape a, a + 1 and a + 2, the mean of the output, and whether it saturated.

    It has if a variance outgrew the precision and was bounded, as wide priors make it in deep networks.
    """

    log_evidence: Float[Array, " D"]
    raised_once: Float[Array, " D"]
    raised_twice: Float[Array, " D"]
    prediction: Float[Array, " D"]
    saturated: Bool[Array, ""]


class GradientFactors(NamedTuple):
    """Vectors whose outer products, summed over layers, are the derivatives in the weights.

    `by_drive` is in mean and variance of W y, `by_entering` in c_m and c_v of every layer but the first, of shape
    (D, L - 1), or (L - 1, D) where layers are few; `outputs` are e and s of the layer before, of shape (L - 1, D).
    """

    observation: Float[Array, " K"]
    by_drive: Gaussian
    by_entering: Gaussian
    outputs: Gaussian

    def encoder(self) -> Gaussian:
        """Derivatives in mean and variance of W."""
        squares = self.observation * self.observation
        return Gaussian(jnp.outer(self.by_drive.mean, self.observation), jnp.outer(self.by_drive.var, squares))

    def recurrent(self, mean: Float[Array, "D D"]) -> Gaussian:
        """Derivatives in mean and variance of S, or of those of its rows that the factors are of; `mean` is theirs."""
        (by_mean, by_var), (e, s) = self.by_entering, self.outputs
        return Gaussian(self._summed(by_mean, e) + 2 * mean * self._summed(by_var, s), self._summed(by_var, e * e + s))

    def of_rows(self, begin: Int[Array, ""], n_rows: int) -> Self:
        """The factors of some rows of S."""
        axis = int(few_layers(len(self.outputs.mean)))
        part = jax.tree.map(lambda all_: jax.lax.dynamic_slice_in_dim(all_, begin, n_rows, axis), self.by_entering)
        return self._replace(by_entering=part)

    @staticmethod
    def _summed(left: Array, right: Array) -> Array:
        """Outer products summed over layers; if few, elementwise sums take half the time of a matrix product."""
        if not few_layers(len(right)):
            return left @ right
        products = (jnp.outer(*rows) for rows in zip(left, right, strict=True))
        return sum(products, jnp.zeros((left.shape[1], right.shape[1]), left.dtype))


class _NoisyEvidence(NamedTuple):
    """The evidence at one noise level, and its derivatives in c_m and c_v of the last layer."""

    log_evidence: Array
    by_mean: Array
    by_var: Array


_AtNoise = Callable[[Array, Array], _NoisyEvidence]


def _log_normal(residual: Array, var: Array) -> Array:
    return -0.5 * jnp.log(var) - 0.5 * residual * residual / var - _HALF_LOG_TWO_PI


def _normal_slopes(residual: Array, var: Array) -> tuple[Array, Array]:
    """Derivatives of `_log_normal` in the mean and the variance."""
    scaled = residual / var
    return scaled, 0.5 * (scaled * scaled - 1 / var)


def _gaussian_output(entering: Gaussian, threshold: Any, code: Array) -> tuple[Array, _AtNoise]:
    """Log N(β; e, s + b/(a − 1)): a Gaussian with the output's mean and variance."""
    (_, mean, output_var), slopes = soft_threshold_moments_and_gradients(*entering, threshold)
    residual = code - mean

    def at_noise(shape: Array, rate: Array) -> _NoisyEvidence:
        var = output_var + rate / (shape - 1)
        by_mean, by_var = _normal_slopes(residual, var)
        return _NoisyEvidence(
            _log_normal(residual, var),
            by_mean * slopes.mean_by_mean + by_var * slopes.var_by_mean,
            by_mean * slopes.mean_by_var + by_var * slopes.var_by_var,
        )

    return mean, at_noise


def _spike_slab_output(entering: Gaussian, threshold: Any, code: Array) -> tuple[Array, _AtNoise]:
    """log[ω T(β; 0, b/a, 2a) + (1 − ω) N(β; m, v + b/(a − 1))]: Student's t for the spike, a Gaussian for the slab."""
    slab, slopes = slab_moments_and_gradients(*entering, threshold)
    residual = code - slab.mean

    def at_noise(shape: Array, rate: Array) -> _NoisyEvidence:
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
            # The slope of a side of probability zero may overflow.
            return jnp.where(in_spike > 0, in_spike * inactive, 0) + jnp.where(in_slab > 0, in_slab * of_slab, 0)

        return _NoisyEvidence(
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


# For each form: the mean of the output, and the evidence as a function of the noise's Gamma.
_OUTPUTS: dict[EvidenceForm, Callable[[Gaussian, Any, Array], tuple[Array, _AtNoise]]] = {
    "spike_slab": _spike_slab_output,
    "gaussian": _gaussian_output,
}


def evidence_and_factors(
    weights: FreeWeights,
    observation: Float[Array, " K"],
    code: Float[Array, " D"],
    shrinkage: Float[AnyArray, " L"],
    noise_shape: Float[Array, ""],
    noise_rate: Float[Array, ""],
    form: EvidenceForm = "spike_slab",
    variance_dtype: np.dtype | None = None,
) -> tuple[Evidence, GradientFactors]:
    """Log Z of one pair, and the factors of its gradient; variances are multiplied in `variance_dtype`."""
    # Forward sweep, and log Z at the last layer.
    variances = VarianceMatrices.of(weights.recurrent, variance_dtype)
    last, outputs, largest = propagate_pair(weights, variances, observation, shrinkage)
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

    # Backward sweep: g_e = M_Sᵀ g_m + 2 e ∘ V_Sᵀ g_v,  g_s = (M_S² + V_S)ᵀ g_v, then through the threshold.
    def back(carry: Gaussian, before: LayerOutputs) -> tuple[Gaussian, Gaussian]:
        by_mean, by_var = carry
        (e, _), slopes = before
        through_var = matrix_product(variances.var, by_var, transposed=True)
        by_e = by_mean @ s_mean + 2 * e * through_var
        by_s = matrix_product(variances.squares, by_var, transposed=True) + through_var
        return Gaussian(*moments_backward(slopes, e, by_e, by_s)), carry

    few = few_layers(len(shrinkage) - 1)
    by_first, by_rest = jax.lax.scan(back, Gaussian(by_mean, by_var), outputs, reverse=True, unroll=few)
    # XLA keeps the result of a division, and recomputes all else for every row of an outer product. Vectors of many
    # layers are transposed, which halves the time of their products.
    one = noise_shape / noise_shape
    by_drive = Gaussian(*((first + jnp.sum(rest, axis=0)) / one for first, rest in zip(by_first, by_rest, strict=True)))
    by_entering = by_rest if few else jax.tree.map(jnp.transpose, by_rest)
    return evidence, jax.lax.optimization_barrier(GradientFactors(observation, by_drive, by_entering, outputs.output))
