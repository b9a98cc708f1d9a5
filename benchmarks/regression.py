"""SpikeSlabRegressor and what people use for tables: python -m benchmarks.regression ../shared results/regression.md

Defaults only, all in one run, one core. The baselines abess and skglm are in the `bench` extra; one that is not
installed is named in the table.
"""

import resource
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.linear_model import ARDRegression, BayesianRidge, LassoCV
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from threadpoolctl import threadpool_limits

from bayeslista import SpikeSlabRegressor

Z90 = 1.6448536269514722


class Susie(NamedTuple):
    """Inclusion probabilities and credible sets of the sum of single effects."""

    pip: np.ndarray
    sets: list


def susie(X, y, n_effects=10, level=0.95, tolerance=1e-3, most=100, purity=0.5):
    """SuSiE (Wang et al., 2020): iterative Bayesian stepwise selection; EM for its variances."""
    X = X - X.mean(axis=0)
    X = X / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    y = y - y.mean()
    n, p = X.shape
    xx = float(n)
    noise, slab = y.var(), np.full(n_effects, 0.2 * y.var())
    alpha, mean, square = np.full((n_effects, p), 1 / p), np.zeros((n_effects, p)), np.zeros((n_effects, p))
    fits = np.zeros((n_effects, n))
    before = -np.inf
    for _ in range(most):
        total, kl = fits.sum(axis=0), 0.0
        for e in range(n_effects):
            residual = y - (total - fits[e])
            xr = X.T @ residual
            # Single effect regression, whose prior variance is updated once by EM.
            for _ in range(2):
                var = 1.0 / (xx / noise + 1.0 / slab[e]) if slab[e] > 0 else 0.0
                each = var * xr / noise
                logs = 0.5 * np.log(var / slab[e]) + 0.5 * each**2 / var if slab[e] > 0 else np.zeros(p)
                weights = np.exp(logs - logs.max())
                alpha[e] = weights / weights.sum()
                slab_new = float(alpha[e] @ (each**2 + var))
                last, slab[e] = slab[e], slab_new if slab_new > 1e-9 * noise else 0.0
            slab[e] = last  # the one of the answer
            mean[e], square[e] = alpha[e] * each, alpha[e] * (each**2 + var)
            slab[e] = slab_new if slab_new > 1e-9 * noise else 0.0
            evidence = logs.max() + np.log(np.mean(np.exp(logs - logs.max())))
            new = X @ mean[e]
            kl += -evidence + (xr @ mean[e] - 0.5 * xx * square[e].sum()) / noise
            total, fits[e] = total - fits[e] + new, new
        error = np.sum((y - total) ** 2) + np.sum(xx * square.sum(axis=1) - np.sum(fits**2, axis=1))
        elbo = -0.5 * n * np.log(2 * np.pi * noise) - 0.5 * error / noise - kl
        noise = error / n
        if elbo - before < tolerance:
            break
        before = elbo
    kept, sets = slab > 0, []
    for e in np.flatnonzero(kept):
        order = np.argsort(-alpha[e], kind="stable")
        members = np.sort(order[: np.searchsorted(np.cumsum(alpha[e][order]), level) + 1])
        if len(members) <= 200 and np.abs(X[:, members].T @ X[:, members] / n).min() >= purity:
            sets.append(tuple(members.tolist()))
    return Susie(1 - np.prod(1 - alpha[kept], axis=0) if kept.any() else np.zeros(p), sorted(set(sets)))


def timed(function):
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def mean_and_range(values, digits=3):
    values = np.asarray(values, float)
    return f"{values.mean():.{digits}f} ({values.std(ddof=1) / np.sqrt(len(values)):.{digits}f})"


# Diabetes ------------------------------------------------------------------------------------------------------------


def diabetes(seeds):
    X, y = load_diabetes(return_X_y=True)
    X = PolynomialFeatures(2, include_bias=False).fit_transform(X)
    models = {
        "SpikeSlabRegressor": lambda seed: SpikeSlabRegressor(random_state=seed),
        "LassoCV": lambda seed: make_pipeline(StandardScaler(), LassoCV()),
        "ARDRegression": lambda seed: make_pipeline(StandardScaler(), ARDRegression()),
        "BayesianRidge": lambda seed: make_pipeline(StandardScaler(), BayesianRidge()),
    }
    rows = {name: [] for name in models}
    for seed in seeds:
        A, B, a, b = train_test_split(X, y, test_size=0.2, random_state=seed)
        for name, make in models.items():
            model, seconds = timed(lambda make=make, seed=seed, A=A, a=a: make(seed).fit(A, a))
            hold = np.nan
            if name == "SpikeSlabRegressor":
                low, high = model.predict_interval(B, 0.9)
                hold = np.mean((low <= b) & (b <= high))
            elif name != "LassoCV":
                mean, std = model.predict(B, return_std=True)
                hold = np.mean(np.abs(b - mean) <= Z90 * std)
            rows[name].append((model.score(B, b), hold, seconds))
    lines = ["| | R² | 90 % intervals hold | s a fit |", "|---|---|---|---|"]
    for name, found in rows.items():
        r2, hold, seconds = np.array(found).T
        held = "" if np.isnan(hold).any() else mean_and_range(hold)
        lines.append(f"| {name} | {mean_and_range(r2)} | {held} | {seconds.mean():.2f} |")
    return lines


# Correlated blocks ---------------------------------------------------------------------------------------------------


def blocks_data(seed, n=100, p=1000):
    rng = np.random.default_rng(seed)
    X = np.sqrt(0.9) * np.repeat(rng.standard_normal((n, p // 10)), 10, axis=1)
    X += np.sqrt(0.1) * rng.standard_normal((n, p))
    coef = np.zeros(p)
    coef[rng.choice(p, 7, replace=False)] = rng.uniform(0.5, 2.0, 7) * rng.choice([-1.0, 1.0], 7)
    return X, X @ coef + rng.standard_normal(n), coef


def mcp(X, y):
    from skglm import MCPRegression

    largest = np.max(np.abs((X - X.mean(axis=0)).T @ (y - y.mean()))) / len(y)
    grid = {"alpha": largest * np.geomspace(1e-2, 1, 30)}
    return (
        GridSearchCV(MCPRegression(gamma=3.0), grid, cv=5, scoring="neg_mean_squared_error").fit(X, y).best_estimator_
    )


def best_subset(X, y):
    from abess import LinearRegression

    return LinearRegression().fit(X, y)


def blocks(seeds):
    models = {
        "SpikeSlabRegressor": lambda X, y: SpikeSlabRegressor(random_state=0).fit(X, y),
        "LassoCV": lambda X, y: LassoCV().fit(X, y),
        "MCP (skglm, 5 folds)": mcp,
        "abess": best_subset,
        "ARDRegression": lambda X, y: ARDRegression().fit(X, y),
    }
    rows, lines, sure, held = {name: [] for name in models}, [], [], []
    for seed in seeds:
        X, y, coef = blocks_data(seed)
        for name, make in models.items():
            try:
                model, seconds = timed(lambda make=make, X=X, y=y: make(X, y))
            except ImportError:
                continue
            rows[name].append((np.sqrt(np.mean((model.coef_ - coef) ** 2)), seconds))
            if name == "SpikeSlabRegressor":
                sure += (coef != 0)[model.prob_active_ > 0.9].tolist()
                low, high = model.posterior_.interval(0.9, given_active=True)
                held += ((low <= coef) & (coef <= high))[coef != 0].tolist()
    lines = ["| | RMSE of coefficients | s a fit |", "|---|---|---|"]
    for name, found in rows.items():
        if not found:
            lines.append(f"| {name} | not installed | |")
            continue
        rmse, seconds = np.array(found).T
        lines.append(f"| {name} | {mean_and_range(rmse, 4)} | {seconds.mean():.2f} |")
    return [
        *lines,
        "",
        f"P(active) > 0.9: {np.sum(sure)} of {len(sure)} active ({np.mean(sure):.3f}). 90 % intervals given that a "
        f"feature is active hold {np.mean(held):.3f} of the {len(held)} active coefficients.",
    ]


# Genotypes -----------------------------------------------------------------------------------------------------------


def genotypes(seeds, path):
    X = np.load(path)["X"].astype(float)
    X = X[:, X.std(axis=0) > 0]
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    found = {"SpikeSlabRegressor": [], "SuSiE (own, numpy)": []}
    sets = {name: [] for name in found}
    said = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        causal = rng.choice(X.shape[1], rng.integers(1, 6), replace=False)
        effect = Z[:, causal] @ rng.standard_normal(len(causal))
        y = np.sqrt(0.3) * effect / effect.std() + np.sqrt(0.7) * rng.standard_normal(len(X))
        truth = np.isin(np.arange(X.shape[1]), causal)

        def ours(y=y):
            model = SpikeSlabRegressor(random_state=0).fit(X, y)
            return model.prob_active_, [each.columns for each in model.credible_sets(X)]

        for name, run in (("SpikeSlabRegressor", ours), ("SuSiE (own, numpy)", lambda y=y: susie(X, y))):
            (pip, columns), seconds = timed(run)
            found[name].append((average_precision_score(truth, pip), seconds))
            sets[name] += [(truth[list(each)].any(), len(each)) for each in columns]
            if name == "SpikeSlabRegressor":
                said += list(zip(pip, truth, strict=True))
    lines = ["| | average precision | sets | hold a causal variant | size, median (mean) | s a replicate |"]
    lines += ["|---|---|---|---|---|---|"]
    for name, values in found.items():
        precision, seconds = np.array(values).T
        cover, size = np.array(sets[name], float).T
        lines.append(
            f"| {name} | {mean_and_range(precision)} | {len(size)} | {cover.mean():.3f} | {np.median(size):g} "
            f"({size.mean():.1f}) | {seconds.mean():.2f} |"
        )
    gap = np.array(found["SpikeSlabRegressor"])[:, 0] - np.array(found["SuSiE (own, numpy)"])[:, 0]
    said = np.array(said)
    parts = []
    for low, high in ((0.1, 0.5), (0.5, 0.9), (0.9, 1.01)):
        inside = said[(said[:, 0] >= low) & (said[:, 0] < high)]
        parts.append(
            f"{low:g} to {min(high, 1):g}: {inside[:, 0].mean():.3f}, {inside[:, 1].mean():.3f} (of {len(inside)})"
        )
    return [
        *lines,
        "",
        f"Difference of average precision: {mean_and_range(gap)}.",
        "",
        f"Mean P(active) and share of causal variants by P(active): {'; '.join(parts)}.",
    ]


# Many features -------------------------------------------------------------------------------------------------------


def large(seeds, n=500, p=20_000):
    lines = ["| seed | RMSE | P > 0.9, of these active | iterations | s | LassoCV: RMSE | s | ratio |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    memory = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        X, coef = rng.standard_normal((n, p)), np.zeros(p)
        coef[rng.choice(p, 10, replace=False)] = rng.standard_normal(10)
        signal = X @ coef
        y = signal + signal.std() * rng.standard_normal(n)
        model, seconds = timed(lambda X=X, y=y: SpikeSlabRegressor(random_state=0).fit(X, y))
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
        lasso, lasso_seconds = timed(lambda X=X, y=y: LassoCV().fit(X, y))
        sure = model.prob_active_ > 0.9
        rmse, lasso_rmse = (np.sqrt(np.mean((each.coef_ - coef) ** 2)) for each in (model, lasso))
        converged = "" if model.diagnostics_["converged"] else ", not converged"
        lines.append(
            f"| {seed} | {rmse:.4f} | {sure.sum()}, {np.sum(coef[sure] != 0)} | {model.n_iter_}{converged} | "
            f"{seconds:.0f} | {lasso_rmse:.4f} | {lasso_seconds:.0f} | {seconds / lasso_seconds:.2f} |"
        )
    return [*lines, "", f"Memory of the process, at most, after the first fit: {memory[0]:.2f} GB."]


def main(shared, out):
    warnings.simplefilter("ignore")
    text = f"""# Regression

Made by `python -m benchmarks.regression ../shared {out}`: defaults only, one core, all in one run. Means over seeds or
replicates, with standard errors in brackets.
"""
    path = Path(shared) / "data" / "genotypes.npz"
    with threadpool_limits(1):
        SpikeSlabRegressor(max_iter=10, random_state=0).fit(np.eye(4), np.arange(4.0))  # compiles
        parts = [
            ("p = 20,000, n = 500, ten active, half of the variance explained", lambda: large((0, 1))),
            ("Diabetes with squares and products (442 × 65), ten splits of 80 % and 20 %", lambda: diabetes(range(10))),
            (
                "n = 100, p = 1,000, correlated at 0.9 in blocks of ten, seven active, twenty seeds",
                lambda: blocks(range(20)),
            ),
            (
                "Genotypes (574 × 1,001), 1 to 5 causal variants, 30 % of variance, 200 replicates",
                lambda: genotypes(range(200), path) if path.exists() else ["No genotypes in this place."],
            ),
        ]
        for title, run in parts:
            lines = run()
            print("\n".join([title, *lines]), flush=True)
            text += f"\n## {title}\n\n" + "\n".join(lines) + "\n"
    Path(out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:3])
