r"""The exact posterior of the synthetic problem, by Gibbs sampling: the limit for all that learns.

Everything is known: :math:`y = X \beta + N(0, \sigma^2)`, and a coefficient is zero with probability :math:`1 - p`,
else normal with mean zero and variance :math:`s^2` given that its magnitude is at least a gap g, as
:func:`bayeslista.datasets.make_sparse_codes` draws it.

Given all other coefficients, with r the residual without the d-th column x, the slab of the d-th is
:math:`N(m, v)` outside :math:`(-g, g)` with :math:`1/v = 1/s^2 + \|x\|^2/\sigma^2` and :math:`m = v\,x^T r/\sigma^2`,
and the odds of being active, the value integrated out, are

.. math::
    \frac{p}{1-p}\, \frac{\sqrt{v}}{s}\, e^{m^2/2v}\, \frac{P(|N(m, v)| \ge g)}{P(|N(0, s^2)| \ge g)}.

A sweep draws activity and value of one coefficient after the other from this. What is averaged over sweeps is not the
draws but these conditional moments themselves (Rao and Blackwell), which have less variance.

Where few observations leave many supports possible, a chain stays near one of them. Replicas at higher temperatures T,
whose noise has variance :math:`T \sigma^2`, move more freely. After every sweep neighbours on the ladder exchange their
codes with probability :math:`\min(1, e^{(1/T - 1/T')(E - E')})`, where :math:`E = \|y - X\beta\|^2 / 2\sigma^2`, which
leaves the posterior at T = 1 exactly as it is.
"""

from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from bayeslista._tail_ratios import tail_ratios
from bayeslista._validation import as_real, check_entries

__all__ = ["GibbsPosterior", "gibbs_posterior"]

_HALF_LOG_TWO_PI = 0.9189385332046727
_DEEP = 5.0  # standard deviations: from here on a tail is inverted by Newton's method on its logarithm
_NEWTON_STEPS = 4


class GibbsPosterior(NamedTuple):
    """Moments of the posterior, and how far the chains agree on them.

    ``mean``, ``var`` and ``prob_active`` have the shape (n, D) of the codes. ``std_error``, of the same shape, is the
    standard error of ``mean`` as the spread between chains tells it. ``gap``, of shape (n,), is how far apart two
    chains are: the root mean square over pairs of chains of the distance between their means, relative to the norm of
    ``mean``. ``swap_rate`` is the fraction of exchanges accepted, for each two neighbours on the ladder.
    """

    mean: Float[np.ndarray, "n D"]
    var: Float[np.ndarray, "n D"]
    prob_active: Float[np.ndarray, "n D"]
    std_error: Float[np.ndarray, "n D"]
    gap: Float[np.ndarray, " n"]
    swap_rate: Float[np.ndarray, " temperatures-1"]


class _Slab(NamedTuple):
    """A coefficient given that it is active: log of the mass N(m, v) leaves outside the gap, moments, and a draw."""

    log_mass: Array
    mean: Array
    var: Array
    draw: Array


class _Tail(NamedTuple):
    """A standard normal above ``start``: its log probability, mean and variance."""

    log_mass: Array
    mean: Array
    var: Array


class _Chains(NamedTuple):
    """Codes of all replicas, in units of the slab: coefficient, temperature, and chains of observations side by side.

    ``swaps`` counts the exchanges of neighbours on the ladder that were accepted.
    """

    codes: Float[Array, "D T M"]
    swaps: Float[Array, " T-1"]


class _Conditional(NamedTuple):
    """Moments of each coefficient given all others, at temperature one, in units of the slab."""

    mean: Float[Array, "D M"]
    var: Float[Array, "D M"]
    prob_active: Float[Array, "D M"]


def gibbs_posterior(
    design_matrix: ArrayLike,
    Y: ArrayLike,
    *,
    prob_active: float = 0.2,
    slab_gap: float = 0.1,
    noise_std: float = 0.5,
    slab_std: float = 1.0,
    n_chains: int = 2,
    n_burn_in: int = 500,
    n_sweeps: int = 1000,
    temperatures: ArrayLike = (1.0,),
    random_state: int | np.random.Generator | None = None,
) -> GibbsPosterior:
    """Posterior mean, variance and probability of being active, for every observation and coefficient.

    All chains of all observations run side by side in one compiled loop, in double precision. Each starts at a
    draw of its own from the prior without its gap, so that chains agree only if they have forgotten where they began.

    Parameters
    ----------
    design_matrix : array-like of shape (K, D)
        X.
    Y : array-like of shape (n, K)
        Observations, one in a row.
    prob_active : float, default=0.2
        Probability p that a coefficient is not zero.
    slab_gap : float, default=0.1
        Smallest magnitude of a coefficient that is not zero. 0 is the plain normal slab.
    noise_std : float, default=0.5
        Standard deviation σ of the noise, larger than zero.
    slab_std : float, default=1.0
        Standard deviation s of the normal whose part outside the gap is the slab.
    n_chains : int, default=2
        Independent chains for each observation, at least two, so that their spread can be told.
    n_burn_in : int, default=500
        Sweeps that are thrown away first.
    n_sweeps : int, default=1000
        Sweeps that are averaged.
    temperatures : array-like of shape (T,), default=(1.0,)
        The ladder: 1, then growing. Every chain costs T times as much. Ratios of about ``1 + 3 / sqrt(K)`` up to 8 are
        a good start where K is half of D; `swap_rate` should be far from 0.
    random_state : int, numpy.random.Generator or None
        A seed, a source of randomness to advance, or None for fresh entropy. The same seed gives the same bits.

    Returns
    -------
    GibbsPosterior
        The moments and what is known of their error.

    Raises
    ------
    ValueError
        If shapes do not agree, entries are not finite, or an argument is out of range.

    Notes
    -----
    On the paper's problem (D = 100, two chains) a single temperature is enough for K = 80 and 100: a few hundred sweeps
    bring the gap to 0.01. At K = 50 it is not: after 300 sweeps two chains still have little in common (gap 0.95). With
    temperatures 1, 1.4, 2, 2.8, 4, 5.6 and 8 the gap is 0.06 after 1500.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.experiments.gibbs import gibbs_posterior
    >>> posterior = gibbs_posterior(np.eye(2), [[3.0, 0.1]], n_sweeps=100, random_state=0)
    >>> posterior.prob_active.round(2)
    array([[1.  , 0.09]])
    >>> posterior.mean.round(1)  # the slab, a standard normal, shrinks 3 by 1 / (1 + 0.5²)
    array([[2.4, 0. ]])
    """
    design, observations = (
        as_real(name, a).astype(np.float64) for name, a in (("design_matrix", design_matrix), ("Y", Y))
    )
    if design.ndim != 2 or observations.ndim != 2 or design.shape[0] != observations.shape[1] or not design.size:
        raise ValueError(
            f"design_matrix has shape {design.shape} and Y {observations.shape}, expected (K, D) and (n, K) with K and "
            "D at least 1. Put one observation in each row of Y."
        )
    for name, array in (("design_matrix", design), ("Y", observations)):
        check_entries(np.isfinite(array), name, array, "be finite", "Drop or repair those entries.")
    ladder = as_real("temperatures", temperatures).astype(np.float64)
    if (
        ladder.ndim != 1
        or not ladder.size
        or ladder[0] != 1.0
        or not (np.diff(ladder) > 0).all()
        or ladder[-1] == np.inf
    ):
        raise ValueError(f"temperatures must be 1 and then grow, got {ladder}. Pass, say, (1.0, 1.4, 2.0).")
    _check_number("prob_active", prob_active, "in [0, 1]", lambda value: 0.0 <= value <= 1.0)
    _check_number("slab_gap", slab_gap, "finite and at least 0", lambda value: 0.0 <= value < np.inf)
    for name, scale in (("noise_std", noise_std), ("slab_std", slab_std)):
        _check_number(name, scale, "finite and larger than 0", lambda value: 0.0 < value < np.inf)
    for name, count, least in (("n_chains", n_chains, 2), ("n_burn_in", n_burn_in, 0), ("n_sweeps", n_sweeps, 1)):
        if not isinstance(count, Integral) or int(count) < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {count!r}. Raise it.")
    seed = int(np.random.default_rng(random_state).integers(2**63))
    chance, gap = np.float64(prob_active), np.float64(slab_gap) / slab_std
    with jax.enable_x64(True), np.errstate(divide="ignore"):
        # In units of noise and slab both variances are one.
        results = _run(
            jax.random.key(seed),
            jnp.asarray(design * (slab_std / noise_std)),
            jnp.asarray(np.repeat(observations.T / noise_std, int(n_chains), axis=1)),
            jnp.asarray(chance),
            # Of being active, before the data and what the gap leaves of the slab are looked at.
            jnp.asarray(np.log(chance) - np.log1p(-chance) - np.log(2.0) - log_ndtr(-gap)),
            jnp.asarray(gap),
            jnp.asarray(1.0 / ladder)[:, None],
            jnp.asarray(int(n_burn_in)),
            jnp.asarray(int(n_sweeps)),
            has_gap=bool(slab_gap > 0),
        )
        moments, scatter, swaps = jax.tree.map(np.asarray, results)
    # From (D, n chains) to (chains, n, D).
    shape = design.shape[1], len(observations), int(n_chains)
    means, within, active = (part.reshape(shape).T for part in moments)
    means, within = slab_std * means, slab_std**2 * (within + scatter.reshape(shape).T / n_sweeps)
    mean, apart = means.mean(axis=0), means.var(axis=0, ddof=1)
    norm = np.linalg.norm(mean, axis=1)
    attempts = np.maximum((int(n_sweeps) + np.array([1, 0])) // 2, 1)[np.arange(len(ladder) - 1) % 2]
    return GibbsPosterior(
        mean=mean,
        var=within.mean(axis=0) + means.var(axis=0),
        prob_active=active.mean(axis=0),
        std_error=np.sqrt(apart / n_chains),
        gap=np.sqrt(2.0 * apart.sum(axis=1)) / np.where(norm > 0.0, norm, 1.0),
        swap_rate=swaps / (attempts * max(means[..., 0].size, 1)),
    )


@partial(jax.jit, static_argnames="has_gap")
def _run(
    key: Array,
    design: Float[Array, "K D"],
    observations: Float[Array, "K M"],
    prob_active: Float[Array, ""],
    log_odds: Float[Array, ""],
    gap: Float[Array, ""],
    inverse_temperatures: Float[Array, "T 1"],
    n_burn_in: Array,
    n_sweeps: Array,
    has_gap: bool,
) -> tuple[_Conditional, Float[Array, "D M"], Float[Array, " T-1"]]:
    """Means over the sweeps of the conditional moments, the scatter of the conditional means, and swaps."""
    for_sweeps, for_activity, for_start = jax.random.split(key, 3)
    n_replicas, n_columns = len(inverse_temperatures), observations.shape[1]
    shape = design.shape[1], n_replicas, n_columns

    def step(i: Array, carry: tuple[_Chains, _Conditional, Array]) -> tuple[_Chains, _Conditional, Array]:
        chains, moments, scatter = carry
        count = i - n_burn_in + 1  # of sweeps that are kept
        kept = count > 0
        step_key = jax.random.fold_in(for_sweeps, i)
        after, new = _sweep(
            step_key, chains, design, observations, log_odds, gap, inverse_temperatures, count - 1, has_gap
        )
        updated = jax.tree.map(lambda old, value: old + jnp.where(kept, (value - old) / count, 0.0), moments, new)
        scatter = scatter + jnp.where(kept, (new.mean - moments.mean) * (new.mean - updated.mean), 0.0)
        return after._replace(swaps=jnp.where(kept, after.swaps, 0.0)), updated, scatter

    active = _uniform(for_activity, shape) < prob_active
    codes = jnp.where(active, jax.random.normal(for_start, shape, jnp.float64), 0.0)
    nothing = jnp.zeros((design.shape[1], n_columns))
    start = _Chains(codes, jnp.zeros(n_replicas - 1)), _Conditional(nothing, nothing, nothing), nothing
    chains, moments, scatter = jax.lax.fori_loop(0, n_burn_in + n_sweeps, step, start)
    return moments, scatter, chains.swaps


def _sweep(
    key: Array,
    chains: _Chains,
    design: Float[Array, "K D"],
    observations: Float[Array, "K M"],
    log_odds: Float[Array, ""],
    gap: Float[Array, ""],
    inverse_temperatures: Float[Array, "T 1"],
    parity: Array,
    has_gap: bool,
) -> tuple[_Chains, _Conditional]:
    """Draw every coefficient once, then let neighbours on the ladder exchange codes."""
    for_draws, for_swaps = jax.random.split(key)
    codes = chains.codes
    uniform = _uniform(for_draws, (len(codes), 2, *codes.shape[1:]))

    def update(residual: Array, given: tuple[Array, Array, Array]) -> tuple[Array, tuple[Array, _Conditional]]:
        column, old, (to_decide, to_draw) = given
        precision = 1.0 + column @ column * inverse_temperatures
        var = 1.0 / precision
        mean = var * inverse_temperatures * (jnp.tensordot(column, residual, 1) + column @ column * old)
        slab = _slab(mean, var, gap, to_draw, has_gap)
        logit = log_odds + 0.5 * (precision * mean * mean - jnp.log(precision)) + slab.log_mass
        chance = jax.nn.sigmoid(logit)
        new = jnp.where(to_decide < chance, slab.draw, 0.0)
        residual = residual - column[:, None, None] * (new - old)
        q, m, v = (jnp.broadcast_to(part, new.shape)[0] for part in (chance, slab.mean, slab.var))
        return residual, (new, _Conditional(q * m, q * (v + (1.0 - q) * m * m), q))

    # Formed afresh in every sweep, so that round-off does not pile up.
    residual = observations[:, None] - jnp.tensordot(design, codes, 1)
    residual, (codes, conditional) = jax.lax.scan(update, residual, (design.T, codes, uniform))
    if codes.shape[1] == 1:
        return chains._replace(codes=codes), conditional
    energy = 0.5 * jnp.sum(residual * residual, axis=0)
    log_ratio = jnp.diff(inverse_temperatures, axis=0) * jnp.diff(energy, axis=0)
    lower = jnp.arange(codes.shape[1] - 1)[:, None]
    accepted = (jnp.log(_uniform(for_swaps, log_ratio.shape)) < log_ratio) & (lower % 2 == parity % 2)
    source = jnp.arange(codes.shape[1])[:, None] + jnp.pad(accepted, ((0, 1), (0, 0))).astype(int)
    source = source - jnp.pad(accepted, ((1, 0), (0, 0))).astype(int)
    codes = jnp.take_along_axis(codes, source[None], axis=1)
    return _Chains(codes, chains.swaps + accepted.sum(axis=1)), conditional


def _uniform(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform numbers that are neither 0 nor 1: from 2⁻⁵³ to 1 − 2⁻⁵³."""
    return jax.random.uniform(key, shape, jnp.float64) + 2.0**-53


def _slab(mean: Array, var: Array, gap: Array, uniform: Array, has_gap: bool) -> _Slab:
    """``N(mean, var)`` outside (−gap, gap)."""
    std = jnp.sqrt(var)
    if not has_gap:
        return _Slab(jnp.zeros(()), mean, var, mean + std * ndtri(uniform))
    starts = (gap - mean) / std, (gap + mean) / std
    above, below = (_tail(start) for start in starts)
    log_mass = jnp.logaddexp(above.log_mass, below.log_mass)
    share, rest = jnp.exp(above.log_mass - log_mass), jnp.exp(below.log_mass - log_mass)
    means = mean + std * above.mean, mean - std * below.mean
    slab_var = var * (share * above.var + rest * below.var) + share * rest * (means[0] - means[1]) ** 2
    upward = uniform < share
    within = jnp.where(upward, uniform / share, (uniform - share) / rest)
    distance = std * _tail_draw(
        jnp.where(upward, *starts),
        jnp.where(upward, above.log_mass, below.log_mass),
        jnp.clip(within, 2.0**-53, 1.0 - 2.0**-53),
    )
    draw = jnp.where(upward, jnp.maximum(mean + distance, gap), jnp.minimum(mean - distance, -gap))
    return _Slab(log_mass, share * means[0] + rest * means[1], slab_var, draw)


def _tail(start: Array) -> _Tail:
    """A standard normal above ``start``, without cancellation however far out that is."""
    size = jnp.abs(start)
    first, second, _ = tail_ratios(size)
    density = jnp.exp(-0.5 * size * size - _HALF_LOG_TWO_PI)
    beyond = density / (size + first)
    positive = start >= 0.0
    log_mass = jnp.where(positive, -0.5 * size * size - _HALF_LOG_TWO_PI - jnp.log(size + first), jnp.log1p(-beyond))
    mean = jnp.where(positive, size + first, density / (1.0 - beyond))
    return _Tail(log_mass, mean, jnp.where(positive, first * (second - first), 1.0 - mean * (size + mean)))


def _tail_draw(start: Array, log_mass: Array, uniform: Array) -> Array:
    """The point beyond which lies the fraction ``uniform`` of the tail above ``start``."""
    target = jnp.log(uniform) + log_mass

    def newton(point: Array) -> Array:
        tail = _tail(point)
        return point + (tail.log_mass - target) / tail.mean

    def deep() -> Array:
        point = jnp.sqrt(jnp.maximum(start, _DEEP) ** 2 - 2.0 * jnp.log(uniform))
        point = jax.lax.fori_loop(0, _NEWTON_STEPS, lambda _, point: newton(point), point)
        return jnp.where(start > _DEEP, point, shallow)

    shallow = -ndtri(jnp.exp(target))
    return jnp.maximum(jax.lax.cond(jnp.any(start > _DEEP), deep, lambda: shallow), start)


def _check_number(name: str, value: Any, rule: str, legal: Callable[[float], bool]) -> None:
    if not isinstance(value, Real) or not legal(float(value)):
        raise ValueError(f"{name} must be a number, {rule}, got {value!r}. Pass the one that drew the data.")
