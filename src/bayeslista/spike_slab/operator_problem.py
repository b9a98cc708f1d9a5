"""What all signals of an operator share: the operator with its traces, groups of coefficients, noise and prior."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bayeslista.operators.protocol import BaseOperator, ColumnScaled, Spectrum, lanczos_spectrum
from bayeslista.spike_slab.config import NUMERICS


@dataclass(frozen=True)
class OperatorBudget:
    """All constants of the layers on operators, each with its reason."""

    share: float = 0.85  # of new sites, with one group as in layers of matrices, ...
    group_share: float = 0.5  # ... and with several: 0.8 diverges on blurs, and 0.3 takes more layers
    structured_share: float = 0.3  # of structured operators: a deconvolution has NMSE 0.13, with 0.85 it has 0.18
    least_share: float = 0.05
    misfit_growth: float = 2.0  # of a misfit, beyond which a signal is damped more
    # Of misfit and squared mean, beyond which a layer diverged: the states before are better. A factor of 1.2 costs
    # 1 to 3 % of the NMSE on the paper's problem, whose misfit rises and falls.
    largest_misfit: float = 20.0
    largest_growth: float = 20.0  # in units of the prior's, or of the first layer's
    widest_site: float = 2.0  # variance in units of the cavity's: with 10 coarse subbands of blurred images diverge
    largest_cavity: float = NUMERICS.largest_cavity
    least_change: float = 1e-3  # of the mean, relative, by which layers end ...
    least_local_change: float = 0.015  # ... or with neighbours, where EM goes on changing what hardly matters
    settled_change: float = 0.05  # of the mean of half of the signals, above which a fit warns
    solver_steps: int = 50  # of conjugate gradients in a layer, with one group ...
    solver_tolerance: float = 1e-3  # ... and the relative residual at which they end
    group_steps: int = 100  # the same with several groups; blurs take more than 20, samples of transforms fewer
    group_tolerances: tuple[float, float, float] = (0.3, 0.1, 0.03)  # of the first, the second and later layers
    probe_every: int = 4  # layers with neighbours, after the first two: more cost time and gain no accuracy on images
    probe_numbers: int = 10_000  # coefficients of all probes of a signal together, if it has fewer of its own
    most_probes: int = 64
    # Mean square of the nonzero eigenvalues of A Aᵀ over their squared mean: at most 2 for independent entries.
    most_random_spread: float = 2.5
    first_penalty: float = 0.02  # of the Lasso that structured operators start from, in units of the largest |Aᵀ y|
    first_steps: int = 200  # of FISTA for it
    learning_layers: int = 60  # at most, to learn noise and prior
    kept_numbers: int = 2**23  # coefficients of the observations of a fit whose answers are kept
    row_numbers: int = 2**20  # coefficients of signals that are answered together
    largest_chi_square: float = 1.5  # of an answer that passes its check: with 10⁴ observations 1.05 is significant
    lanczos_steps: int = 30
    lanczos_numbers: int = 4_000  # observations of all probes of the quadrature together ...
    least_lanczos_probes: int = 2  # ... and how many there are at least
    largest_noise_step: float = 3.0  # factor on the noise by one layer
    least_probability: float = 1e-6
    least_slab: float = 1e-6  # variance of a slab, in units of the least noise
    neighbor_share: float = 0.95  # of the variance of a slab that follows the neighbours


OPERATOR_BUDGET = OperatorBudget()


class Groups(NamedTuple):
    """Groups of coefficients; no labels are one group of all."""

    labels: NDArray[Any] | None
    n_groups: int
    sizes: NDArray[Any]  # (B,)

    def mean(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Means over the groups of every row, (n, B), in double precision."""
        if self.labels is None:
            return np.asarray(np.mean(rows, axis=1, keepdims=True, dtype=np.float64))
        return np.stack([np.bincount(self.labels, row, self.n_groups) for row in rows]) / self.sizes

    def spread(self, values: Any, dtype: Any) -> NDArray[Any]:
        """One number a coefficient, of one a group or one a coefficient."""
        array = np.asarray(values).astype(dtype)
        if self.labels is None or array.shape[-1] != self.n_groups:
            return array
        return array[..., self.labels]


class OperatorPrior(NamedTuple):
    """Spike and Gaussian slab of zero mean, one of each a group, or a probability a coefficient."""

    prob_active: NDArray[Any]  # (B,) or (D,)
    slab_var: NDArray[Any]  # (B,)


class OperatorProblem(NamedTuple):
    """Operator with normalised columns where their norms are known, what its traces take, noise and prior."""

    operator: BaseOperator
    column_unit: NDArray[Any] | float  # what a coefficient is divided by when its column is normalised
    groups: Groups
    spectrum: Spectrum | None  # with one group
    column_power: NDArray[Any]  # (B,), mean squared norm of the columns
    normal_power: NDArray[Any]  # (B,), mean square of Aᵀ A z for random signs z
    code_signs: NDArray[Any]  # (P, D), of probes; none where there is a spectrum
    noise_signs: NDArray[Any]  # (P, K)
    is_local: bool  # whether variances of slabs follow the neighbours of a coefficient
    relative_var: NDArray[Any]  # (D,), variances of slabs in units of their group's
    prior: OperatorPrior
    noise_var: float
    least_noise: float
    is_structured: bool = False  # whether eigenvalues vary far more than those of random matrices


def make_groups(labels: NDArray[Any] | None, n_components: int) -> Groups:
    """Groups of labels, which count from 0."""
    if labels is None or not np.any(labels):
        return Groups(None, 1, np.array([float(n_components)]))
    sizes = np.bincount(labels).astype(float)
    return Groups(np.asarray(labels, np.intp), len(sizes), sizes)


def make_operator_problem(
    operator: BaseOperator,
    labels: NDArray[Any] | None,
    prior: OperatorPrior,
    noise_var: float,
    power: float,
    dtype: np.dtype[Any],
    *,
    relative_var: NDArray[Any] | None = None,
    is_local: bool = False,
) -> OperatorProblem:
    """Everything that layers take; `power` is the mean square of an observation, which bounds the noise from below."""
    (K, D), groups, random = operator.shape, make_groups(labels, operator.shape[1]), np.random.default_rng(0)
    norms = operator.squared_column_norms
    unit: Any = np.ones(1, dtype)
    if norms is not None and operator.gram_eigenvalues is None:
        largest = float(np.max(norms))
        unit = (1 / np.sqrt(norms + NUMERICS.column_floor * largest if largest > 0 else np.ones(D))).astype(dtype)
        operator = ColumnScaled(operator, unit)
    spectrum, n_probes = None, 0
    if groups.labels is None:
        known = operator.gram_eigenvalues
        if known is not None:
            spectrum = Spectrum(known, np.ones(len(known)))
        else:
            count = max(OPERATOR_BUDGET.least_lanczos_probes, -(-OPERATOR_BUDGET.lanczos_numbers // K))
            spectrum = lanczos_spectrum(operator, count, OPERATOR_BUDGET.lanczos_steps)
    else:
        n_probes = int(np.clip(OPERATOR_BUDGET.probe_numbers // D, 1, OPERATOR_BUDGET.most_probes))
    signs = [random.choice(np.array([-1, 1], dtype), (n_probes, size)) for size in (D, K)]
    # Diagonals of AᵀA and of its square, by one probe z: z (AᵀA z) varies by what is off the diagonal alone.
    code = random.choice(np.array([-1, 1], dtype), (1, D))
    normal = operator.rmatvec(operator.matvec(code))
    normal_power = np.maximum(groups.mean(normal**2)[0], np.finfo(dtype).tiny)
    column_power = np.maximum(groups.mean(normal * code)[0], 1e-3 * np.sqrt(normal_power))
    relative = np.broadcast_to(np.ones(1) if relative_var is None else relative_var, D) / unit**2
    least = max(float(np.finfo(dtype).eps) ** 0.8 * power, float(np.finfo(dtype).tiny))
    return OperatorProblem(
        operator,
        unit,
        groups,
        spectrum,
        column_power,
        normal_power,
        signs[0],
        signs[1],
        is_local,
        relative.astype(dtype),
        prior,
        max(float(noise_var), least),
        least,
        spectrum is not None and _is_structured(spectrum, min(K, D)),
    )


def _is_structured(spectrum: Spectrum, rank: int) -> bool:
    total, square = (float(np.sum(spectrum.weights * spectrum.eigenvalues**power)) for power in (1, 2))
    return rank * square > OPERATOR_BUDGET.most_random_spread * total**2
