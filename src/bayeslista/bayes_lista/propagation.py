r"""Moments through the layers of the network with coupled weights W and R, and the gradient of its expected error.

With the design matrix X given, :math:`S = I + N`, :math:`N = R - W X` (coupled weights, as in LISTA-CP): every pair
(W, S) is reachable, and ``R`` is the departure of S from the relation of proximal gradient steps. W (``encoder``) and R
(``residual``) have independent Gaussian entries with means M and variances V. Layer l has a threshold, a momentum
:math:`\mu` and a step size :math:`\gamma`:

.. math::
    u = \beta_{l-1} + \mu (\beta_{l-1} - \beta_{l-2}), \qquad c = u + \gamma (W y + N u), \qquad \beta_l = h(c).

With e and s for mean and variance of :math:`\beta`, :math:`f = y - X u_m`, :math:`n = \mathrm{diag}\,M_N`, and
:math:`\kappa_l` for the covariance of the successive :math:`\beta_l, \beta_{l-1}`,

.. math::
    u_m &= (1 + \mu) e_{l-1} - \mu e_{l-2}, \qquad
    u_s = (1 + \mu)^2 s_{l-1} + \mu^2 s_{l-2} - 2 \mu (1 + \mu) \kappa_{l-1}, \\
    c_m &= u_m + \gamma (M_W y + M_N u_m), \qquad
    c_v = (1 + 2 \gamma n) u_s + \gamma^2 (B u_s + V_R u_m^2 + V_W f^2), \qquad B = M_N^2 + V_R + V_W X^2, \\
    z_l &= (1 + \gamma n) \big((1 + \mu) s_{l-1} - \mu \kappa_{l-1}\big), \qquad \kappa_l = q_l z_l,

squares of matrices and vectors taken elementwise. :math:`z_l` is the covariance of :math:`c_l` and :math:`\beta_{l-1}`,
and :math:`\kappa_l` follows from it by Stein's lemma with :math:`q = P(|c| > \lambda)`, the mean slope of h;
docs/model.md compares it with Monte Carlo. Backwards, with :math:`g_m, g_v` the derivatives in :math:`c_m, c_v` and
:math:`g_f = 2 \gamma^2 f \circ V_W^T g_v`:

.. math::
    g_{u_s} = \gamma^2 B^T g_v + (1 + 2 \gamma n) g_v, \qquad
    g_{u_m} = g_m + \gamma M_N^T g_m - X^T g_f + 2 \gamma^2 u_m \circ V_R^T g_v ,

and from there to e and s of both layers by the equations of u; in :math:`\kappa`, q and n are held. So a layer is three
matrix products either way, with :math:`M_N`, with :math:`X` and with :math:`[B, V_R, V_W]`; the derivatives in the
weights of all layers together are two more. Where every variance is the product of a row factor and a column factor
(:class:`RowColumn`), the third product is one with :math:`B` alone. All is batched over observations.
"""

from typing import Any, Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayeslista.numerics.precision import AnyArray, largest_moment
from bayeslista.numerics.soft_threshold import slab_moments, soft_threshold_moments
from bayeslista.numerics.soft_threshold_fast import (
    Gaussian,
    Slopes,
    fast_moments,
    fast_moments_and_probability,
    fast_moments_and_slopes,
    moments_backward,
    threshold_backward,
)


class RowColumn(NamedTuple):
    """Independent Gaussian entries of a matrix; a variance is the product of a row factor and a column factor."""

    mean: Float[Array, "m n"]
    rows: Float[Array, " m"]
    columns: Float[Array, " n"]

    @property
    def var(self) -> Float[Array, "m n"]:
        """The variance of every entry."""
        return self.rows[:, None] * self.columns


_Kind = TypeVar("_Kind", Gaussian, RowColumn)


class CoupledWeights(NamedTuple, Generic[_Kind]):
    """The posterior of W and R, both of one kind."""

    encoder: _Kind
    residual: _Kind


class LayerParameters(NamedTuple):
    """Threshold, momentum and step size of each layer; the momentum of the first has no effect."""

    shrinkage: Float[AnyArray, " L"]
    momentum: Float[AnyArray, " L"]
    step_size: Float[AnyArray, " L"]

    @classmethod
    def plain(cls, shrinkage: Float[AnyArray, " L"]) -> Self:
        """Without momentum, at step size one: the layers of ISTA."""
        return cls(shrinkage, 0 * shrinkage, 0 * shrinkage + 1)

    @property
    def following(self) -> tuple[Any, Any, Any]:
        """The threshold of every layer but the last, with momentum and step size of the layer after it."""
        return self.shrinkage[:-1], self.momentum[1:], self.step_size[1:]


class Propagated(NamedTuple):
    """Means and variances before and after the last threshold, each of shape (n, D)."""

    entering: Gaussian
    output: Gaussian


class CoupledGradient(NamedTuple, Generic[_Kind]):
    """Derivatives in the weights' means and variances (or their factors), and in the parameters of every layer."""

    weights: CoupledWeights[_Kind]
    layers: LayerParameters


class LayerMatrices(NamedTuple):
    """Matrices that all layers share: M_W, M_N, X and those of variances; the last two in the type of variances."""

    encoder: Float[Array, "D K"]
    recurrent: Float[Array, "D D"]
    design: Float[Array, "K D"]
    variances: "_Elementwise | _ByRowAndColumn"


class _Powers(NamedTuple):
    """The terms of c_v: u_s, u_m² and f²."""

    var: Array
    square: Array
    misfit_square: Array


class _Between(NamedTuple):
    """What goes from a layer to the next: c_m, c_v and z, and mean and variance of the output before them."""

    entering: Gaussian
    covariance: Array
    before: Gaussian


class _Extrapolated(NamedTuple):
    """u_m and u_s, f, and what the step size multiplies: M_W y + M_N u_m and B u_s + V_R u_m² + V_W f²."""

    mean: Array
    var: Array
    misfit: Array
    direction: Array
    direction_var: Array

    @property
    def powers(self) -> _Powers:
        return _Powers(self.var, self.mean * self.mean, self.misfit * self.misfit)


class _LayerOutput(NamedTuple):
    """e, s and κ of a layer, e and s of the one before, slopes of its threshold, and u, kept for the backward sweep."""

    output: Gaussian
    covariance: Array
    before: Gaussian
    slopes: Slopes
    extrapolated: _Extrapolated


class _Elementwise(NamedTuple):
    """B, V_R and V_W side by side."""

    matrix: Float[Array, "D 2*D+K"]

    @classmethod
    def of(cls, weights: CoupledWeights[Gaussian], recurrent: Array, design_matrix: AnyArray) -> Self:
        encoder, residual = weights
        of_var = recurrent * recurrent + residual.var + encoder.var @ (design_matrix * design_matrix)
        return cls(jnp.concatenate([of_var, residual.var, encoder.var], axis=1))

    def first(self, observed_square: Array) -> Array:
        """The part of c_v that the step size multiplies in the first layer: V_W y²."""
        return observed_square @ self.matrix[:, -observed_square.shape[1] :].T

    def variance(self, powers: _Powers) -> Array:
        """B u_s + V_R u_m² + V_W f²."""
        return jnp.concatenate(powers, axis=1) @ self.matrix.T

    def back(self, by_var: Array) -> _Powers:
        """Derivatives in u_s, u_m² and f²."""
        return _Powers(*self._parts(by_var @ self.matrix))

    def gradient(
        self, by_var: Array, powers: _Powers, first: Array, observed_square: Array, design_square: AnyArray
    ) -> tuple[Array, tuple[Array], tuple[Array]]:
        """Derivatives in M_N² and in the variances of W and of R, from those in the variances of all layers."""
        by_of_var, by_residual, by_encoder = self._parts(by_var.T @ jnp.concatenate(powers, axis=1))
        by_encoder = by_encoder + first.T @ observed_square + by_of_var @ design_square.T
        return by_of_var, (by_encoder,), (by_residual + by_of_var,)

    def _parts(self, whole: Array) -> list[Array]:
        n_components = len(self.matrix)
        return jnp.split(whole, [n_components, 2 * n_components], axis=1)


class _ByRowAndColumn(NamedTuple):
    """B, and the factors of V_W and V_R."""

    of_var: Float[Array, "D D"]
    encoder_rows: Float[Array, " D"]
    encoder_columns: Float[Array, " K"]
    residual_rows: Float[Array, " D"]
    residual_columns: Float[Array, " D"]

    @classmethod
    def of(cls, weights: CoupledWeights[RowColumn], recurrent: Array, design_matrix: AnyArray) -> Self:
        (_, p, q), (_, r, t) = weights
        of_var = recurrent * recurrent + r[:, None] * t + p[:, None] * (q @ (design_matrix * design_matrix))
        return cls(of_var, p, q, r, t)

    def first(self, observed_square: Array) -> Array:
        """The part of c_v that the step size multiplies in the first layer: V_W y²."""
        return jnp.outer(observed_square @ self.encoder_columns, self.encoder_rows)

    def variance(self, powers: _Powers) -> Array:
        """B u_s + V_R u_m² + V_W f²."""
        of_encoder, of_residual = powers.misfit_square @ self.encoder_columns, powers.square @ self.residual_columns
        return (
            powers.var @ self.of_var.T
            + of_encoder[:, None] * self.encoder_rows
            + of_residual[:, None] * self.residual_rows
        )

    def back(self, by_var: Array) -> _Powers:
        """Derivatives in u_s, u_m² and f²."""
        by_encoder, by_residual = (by_var @ self.encoder_rows)[:, None], (by_var @ self.residual_rows)[:, None]
        return _Powers(by_var @ self.of_var, by_residual * self.residual_columns, by_encoder * self.encoder_columns)

    def gradient(
        self, by_var: Array, powers: _Powers, first: Array, observed_square: Array, design_square: AnyArray
    ) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
        """Derivatives in M_N² and in the factors of W and of R, from those in the variances of all layers."""
        squares = powers.var + powers.square
        of_encoder = powers.var @ (self.encoder_columns @ design_square) + powers.misfit_square @ self.encoder_columns
        by_encoder, by_residual = by_var @ self.encoder_rows, by_var @ self.residual_rows
        encoder_rows = of_encoder @ by_var + (observed_square @ self.encoder_columns) @ first
        encoder_columns = (
            by_encoder @ powers.misfit_square
            + design_square @ (by_encoder @ powers.var)
            + (first @ self.encoder_rows) @ observed_square
        )
        residual = (squares @ self.residual_columns) @ by_var, by_residual @ squares
        return by_var.T @ powers.var, (encoder_rows, encoder_columns), residual


def recurrent_mean(weights: CoupledWeights[_Kind], design_matrix: Float[AnyArray, "K D"]) -> Float[Array, "D D"]:
    """Mean of N = S − I, :math:`M_R - M_W X`."""
    return weights.residual.mean - weights.encoder.mean @ design_matrix


def layer_matrices(
    weights: CoupledWeights[_Kind], design_matrix: Float[AnyArray, "K D"], variance_dtype: np.dtype | None = None
) -> LayerMatrices:
    """The matrices that all layers share; variances are in `variance_dtype`, by default that of the weights."""
    recurrent = recurrent_mean(weights, design_matrix)
    kind = _Elementwise if isinstance(weights.encoder, Gaussian) else _ByRowAndColumn
    variances, dtype = kind.of(weights, recurrent, design_matrix), variance_dtype or recurrent.dtype
    largest = float(np.finfo(dtype).max)
    variances, design = jax.tree.map(
        lambda part: part.clip(-largest, largest).astype(dtype), (variances, design_matrix)
    )
    return LayerMatrices(weights.encoder.mean, recurrent, design, variances)


def _first(
    matrices: LayerMatrices, observations: Array, layers: LayerParameters
) -> tuple[Array, Array, Array, _Between]:
    """W y, the observations in the type of variances, V_W y², and the input of the first threshold."""
    drive = observations @ matrices.encoder.T
    reduced = in_dtype(observations, matrices.design.dtype)
    spread = matrices.variances.first(reduced * reduced)
    step_size = layers.step_size[0].astype(spread.dtype)
    nothing = jnp.zeros_like(spread)
    entering = _bounded(layers.step_size[0] * drive, step_size * step_size * spread)
    return drive, reduced, spread, _Between(entering, nothing, Gaussian(jnp.zeros_like(drive), nothing))


def _next(
    matrices: LayerMatrices,
    drive: Array,
    reduced: Array,
    output: Gaussian,
    covariance: Array,
    before: Gaussian,
    momentum: Any,
    step_size: Any,
) -> tuple[_Between, _Extrapolated]:
    """The input of the next threshold from e, s and κ of this layer, and e and s of the one before."""
    dtype = output.var.dtype
    # u_m = (1 + μ) e − μ e',  u_s = (1 + μ)² s + μ² s' − 2 μ (1 + μ) κ
    mu, gamma = momentum.astype(dtype), step_size.astype(dtype)
    mean = output.mean + momentum * (output.mean - before.mean)
    var = (1 + mu) ** 2 * output.var + mu * mu * before.var - 2 * mu * (1 + mu) * covariance
    mean, var = _bounded(mean, jnp.maximum(var, 0))
    # M_N u_m, and f = y − X u_m
    small = in_dtype(mean, dtype)
    if small.dtype == matrices.recurrent.dtype:
        # One product with [M_N; X] is faster than two; XLA concatenates once, before the loop over layers.
        both = mean @ jnp.concatenate([matrices.recurrent, matrices.design]).T
        recurrent, observed = both[:, : len(matrices.recurrent)], both[:, len(matrices.recurrent) :]
    else:
        recurrent, observed = mean @ matrices.recurrent.T, small @ matrices.design.T
    direction, misfit = drive + recurrent, reduced - observed
    # c_m = u_m + γ (M_W y + M_N u_m),  c_v = (1 + 2 γ n) u_s + γ² (B u_s + V_R u_m² + V_W f²)
    direction_var = matrices.variances.variance(_Powers(var, small * small, misfit * misfit))
    diagonal = jnp.diag(matrices.recurrent).astype(dtype)
    # No variance is negative, but this difference may be by rounding.
    spread = jnp.maximum((1 + 2 * gamma * diagonal) * var + gamma * gamma * direction_var, 0)
    entering = _bounded(mean + step_size * direction, spread)
    # z = (1 + γ n) ((1 + μ) s − μ κ)
    largest = largest_moment(output.var)
    following = (1 + gamma * diagonal) * ((1 + mu) * output.var - mu * covariance)
    extrapolated = _Extrapolated(mean, var, misfit, direction, direction_var)
    return _Between(entering, jnp.clip(following, -largest, largest), output), extrapolated


def in_dtype(values: Float[Array, "..."], dtype: np.dtype) -> Float[Array, "..."]:
    """Means in the floating type of variances, bounded so that their squares do not overflow."""
    if values.dtype == dtype:
        return values
    largest = largest_moment(jnp.zeros((), dtype))
    return jnp.clip(values, -largest, largest).astype(dtype)


def _bounded(mean: Array, var: Array) -> Gaussian:
    """Moments bounded so that their squares do not overflow: no infinity, no NaN."""
    largest = largest_moment(mean)
    return Gaussian(jnp.clip(mean, -largest, largest), jnp.minimum(var, largest_moment(var)))


@jax.jit
def propagate_layers(matrices: LayerMatrices, observations: Float[Array, "n K"], layers: LayerParameters) -> Propagated:
    """Moments before and after the last threshold: c_m and c_v layer by layer."""
    drive, reduced, _, first = _first(matrices, observations, layers)

    def layer(between: _Between, of_layer: tuple[Any, Any, Any]) -> tuple[_Between, None]:
        threshold, *following = of_layer
        output, prob_active = fast_moments_and_probability(*between.entering, threshold)
        covariance = prob_active * between.covariance  # κ = q z
        after, _ = _next(matrices, drive, reduced, output, covariance, between.before, *following)
        return after, None

    last, _ = jax.lax.scan(layer, first, layers.following)
    return Propagated(last.entering, fast_moments(*last.entering, layers.shrinkage[-1]))


def expected_error_and_gradient(
    weights: CoupledWeights[_Kind],
    design_matrix: Float[AnyArray, "K D"],
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    layers: LayerParameters,
    included: Float[AnyArray, " n"],
) -> tuple[Float[Array, ""], Float[Array, "n D"], CoupledGradient[_Kind]]:
    r"""Expected squared error :math:`\sum (\beta - e)^2 + s` over pairs weighted by `included`; e; its gradient."""
    # Forward sweep: c_m, c_v → e, s of every layer.
    matrices = layer_matrices(weights, design_matrix)
    drive, reduced, first_spread, first = _first(matrices, observations, layers)
    diagonal = jnp.diag(matrices.recurrent)

    def layer(between: _Between, of_layer: tuple[Any, Any, Any]) -> tuple[_Between, _LayerOutput]:
        threshold, *following = of_layer
        output, slopes = fast_moments_and_slopes(*between.entering, threshold)
        covariance = slopes.prob_active * between.covariance  # κ = q z
        after, extrapolated = _next(matrices, drive, reduced, output, covariance, between.before, *following)
        return after, _LayerOutput(output, covariance, between.before, slopes, extrapolated)

    last, outputs = jax.lax.scan(layer, first, layers.following)
    at_end: Any = fast_moments_and_slopes(*last.entering, layers.shrinkage[-1])
    output: Gaussian = at_end[0]
    slopes: Slopes = at_end[1]
    mean: Array = output.mean
    var: Array = output.var
    weight: Array = jnp.asarray(included)[:, None]
    by_output: tuple[Array, Array] = 2 * weight * (mean - codes), jnp.broadcast_to(weight, var.shape)

    # Backward sweep: derivatives in c_m, c_v and z of a layer, and in e and s of the layer before as part of its u
    # → the same of the layer before.
    def back(carry: Any, given: Any) -> tuple[Any, Any]:
        by_mean, by_var, by_z, by_e_of_next, by_s_of_next = carry
        kept: _LayerOutput = given[0]
        mu, gamma = given[1:]
        e: Array = kept.output.mean
        s: Array = kept.output.var
        u, before = kept.extrapolated, kept.before
        # g_f = 2 γ² f ∘ V_Wᵀ g_v;  g_u_m = g_m + γ M_Nᵀ g_m − Xᵀ g_f + 2 γ² u_m ∘ V_Rᵀ g_v
        scaled_mean, scaled_var = gamma * by_mean, gamma * gamma * by_var
        by_us, by_square, by_misfit_square = matrices.variances.back(scaled_var)
        by_misfit = 2 * u.misfit * by_misfit_square
        by_um = by_mean + scaled_mean @ matrices.recurrent - by_misfit @ matrices.design + 2 * u.mean * by_square
        # g_u_s = γ² Bᵀ g_v + (1 + 2 γ n) g_v
        by_us = jnp.where(u.var > 0, by_us + (1 + 2 * gamma * diagonal) * by_var, 0)
        # u_s = (1 + μ)² s + μ² s' − 2 μ (1 + μ) κ,  z = (1 + γ n) ((1 + μ) s − μ κ)
        by_drift = (1 + gamma * diagonal) * by_z
        by_covariance = -2 * mu * (1 + mu) * by_us - mu * by_drift
        by_e: Array = (1 + mu) * by_um + by_e_of_next
        by_s: Array = (1 + mu) ** 2 * by_us + (1 + mu) * by_drift + by_s_of_next
        by_layer = LayerParameters(
            jnp.sum(threshold_backward(kept.slopes, e, by_e, by_s)),
            jnp.sum(by_um * (e - before.mean) + by_drift * (s - kept.covariance))
            + 2 * jnp.sum(by_us * ((1 + mu) * s + mu * before.var - (1 + 2 * mu) * kept.covariance)),
            jnp.sum(by_mean * u.direction + 2 * by_var * (diagonal * u.var + gamma * u.direction_var)),
        )
        following = (
            *moments_backward(kept.slopes, e, by_e, by_s),
            kept.slopes.prob_active * by_covariance,
            -mu * by_um,
            mu * mu * by_us,
        )
        return following, (scaled_mean, scaled_var, by_layer, by_var)

    nothing = jnp.zeros_like(mean)
    start: tuple[Array, ...] = (*moments_backward(slopes, mean, *by_output), nothing, nothing, nothing)
    backward = jax.lax.scan(back, start, (outputs, *layers.following[1:]), reverse=True)
    (first_mean, first_var, *_), (by_means, by_vars, by_layers, by_unscaled_vars) = backward
    # Derivatives in the weights: outer products over all layers and pairs as one matrix product.
    rows, by_mean_rows, by_var_rows = jax.tree.map(
        lambda part: part.reshape(-1, part.shape[-1]), (outputs.extrapolated, by_means, by_vars)
    )
    first_step = layers.step_size[0]
    squares = first_step**2 * first_var, observations * observations, design_matrix * design_matrix
    by_square, by_encoder, by_residual = matrices.variances.gradient(by_var_rows, rows.powers, *squares)
    # ∂/∂M_N = Σ γ g_m u_mᵀ + 2 M_N ∘ Σ γ² g_v u_sᵀ + 2 diag Σ γ g_v u_s
    # ∂/∂M_W = Σ γ g_m yᵀ − ∂/∂M_N Xᵀ;  ∂/∂M_R = ∂/∂M_N
    on_diagonal = jnp.einsum("l,lnd,lnd->d", layers.step_size[1:], by_unscaled_vars, outputs.extrapolated.var)
    by_recurrent = by_mean_rows.T @ rows.mean + 2 * matrices.recurrent * by_square + 2 * jnp.diag(on_diagonal)
    by_drive = first_step * first_mean + jnp.sum(by_means, axis=0)
    kind = type(weights.encoder)
    gradient = CoupledWeights(
        kind(by_drive.T @ observations - by_recurrent @ design_matrix.T, *by_encoder), kind(by_recurrent, *by_residual)
    )
    by_last = jnp.sum(threshold_backward(slopes, mean, *by_output))
    by_first_step = jnp.sum(first_mean * drive + 2 * first_step * first_var * first_spread)
    by_parameters = LayerParameters(
        jnp.append(by_layers.shrinkage, by_last),
        jnp.append(0 * by_last, by_layers.momentum),
        jnp.append(by_first_step, by_layers.step_size),
    )
    error = jnp.sum(weight * ((mean - codes) ** 2 + var))
    return error, mean, CoupledGradient(gradient, by_parameters)


def relative_errors(
    predicted: Float[Array, "... D"], codes: Float[Array, "... D"]
) -> tuple[Float[Array, "..."], Bool[Array, "..."]]:
    """``‖prediction − code‖ / ‖code‖``, 0 where the code is zero, and where it is not."""
    norms = jnp.linalg.norm(codes, axis=-1)
    nonzero = norms > 0
    errors = jnp.linalg.norm(predicted - codes, axis=-1) / jnp.where(nonzero, norms, 1)
    return jnp.where(nonzero, errors, 0), nonzero


def network_slab(entering: Gaussian, threshold: Any) -> tuple[Array, Array, Array]:
    """The spike and slab of the output: the soft-thresholded Gaussian input of the last layer."""
    mean, var = entering
    slab = slab_moments(mean, var, threshold)
    limits = jnp.finfo(mean.dtype)  # both states keep a positive probability, so that both have a finite log score
    prob_active = jnp.clip(soft_threshold_moments(mean, var, threshold).prob_active, limits.tiny, 1 - limits.eps)
    return prob_active, slab.mean, slab.var
