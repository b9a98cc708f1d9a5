"""What speed rests on: few compilations, light imports, moments that stand for draws of the weights."""

import subprocess
import sys

import numpy as np
import pytest
from sklearn.base import clone

from bayeslista import LISTA, BayesLISTA
from bayeslista.bayes_lista import variational
from bayeslista.bayes_lista.adf import filtering as adf
from bayeslista.datasets import make_sparse_codes
from bayeslista.lista import training as gradient_descent
from bayeslista.lista.proximal import soft_threshold


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(n_train=220, n_test=40, n_observed=12, n_components=18, random_state=3)


@pytest.fixture(scope="module")
def model(data):
    return BayesLISTA(4, design_matrix=data.design_matrix, max_iter=3, random_state=0).fit(data.Y_train, data.B_train)


def compiled(*functions):
    return sum(function._cache_size() for function in functions)


@pytest.mark.parametrize(
    ("estimator", "function"),
    [
        (BayesLISTA(3, max_iter=3, tol=0), variational._step_in_place),
        (BayesLISTA(3, max_iter=3, tol=0, inference="adf"), adf.filter_pairs),
        (LISTA(3, max_iter=3, tol=0), gradient_descent.step),
    ],
    ids=["BayesLISTA", "ADF", "LISTA"],
)
def test_one_compilation_serves_all_passes_seeds_and_folds(data, estimator, function):
    before = compiled(function)
    for seed in (0, 1):
        for fold in (slice(0, 110), slice(110, 220)):
            fitted = clone(estimator).set_params(design_matrix=data.design_matrix, random_state=seed)
            fitted.fit(data.Y_train[fold], data.B_train[fold])
    assert compiled(function) == before + 1


@pytest.mark.slow
def test_streams_of_any_cut_compile_for_few_sizes(data):
    before = compiled(adf.filter_pairs)
    stream = BayesLISTA(2, design_matrix=data.design_matrix)
    begin = 0
    for size in (120, 1, 2, 3, 5, 7, 11, 13, 17):
        rows = slice(begin, begin + size)
        stream.partial_fit(data.Y_train[rows], data.B_train[rows])
        begin += size
    assert compiled(adf.filter_pairs) <= before + 7  # powers of two up to 64


def drawn(model, Y, n_draws, afresh):
    """Outputs of networks whose W and R are drawn, once for all layers or afresh in every layer."""
    random = np.random.default_rng(0)
    X = model.design_matrix_
    # What is left of the variance of S after that which W brings along through X is the variance of R.
    own = np.sqrt(model.recurrent_std_**2 - model.encoder_std_**2 @ X**2)
    departure = model.recurrent_ - np.eye(len(own)) + model.encoder_ @ X
    outputs = np.zeros((n_draws, len(Y), len(own)))
    for output in outputs:
        codes = before = np.zeros((len(Y), len(own)))
        layers = zip(model.shrinkage_, model.momentum_, model.step_size_, strict=True)
        for layer, (threshold, momentum, step_size) in enumerate(layers):
            if afresh or layer == 0:
                W = model.encoder_ + model.encoder_std_ * random.standard_normal(model.encoder_.shape)
                R = departure + own * random.standard_normal(own.shape)
            ahead = codes + momentum * (codes - before)
            entering = ahead + step_size * ((Y - ahead @ X.T) @ W.T + ahead @ R.T)
            before, codes = codes, soft_threshold(entering, threshold)
        output[:] = codes
    return outputs


def test_propagated_deviations_are_those_of_weights_drawn_afresh_in_every_layer(data, model):
    Y = data.Y_test[:10]
    told = model.predict_dist(Y, include_noise=False)
    outputs = drawn(model, Y, 2000, afresh=True)
    # 2,000 draws tell a standard deviation to 1.6 %, and the mean over 180 coefficients far better.
    ratio = np.sqrt(told.var().mean() / outputs.var(axis=0).mean())
    assert 0.9 < ratio < 1.1
    np.testing.assert_allclose(told.mean(), outputs.mean(axis=0), atol=0.1 * outputs.std(axis=0).max())


def test_weights_shared_by_all_layers_spread_more_than_moments_tell(data, model):
    Y = data.Y_test[:10]
    told = model.predict_dist(Y, include_noise=False)
    assert drawn(model, Y, 500, afresh=False).var(axis=0).mean() > 1.1 * told.var().mean()


def test_imports_bring_nothing_heavy_along():
    code = (
        "import sys, bayeslista; bayeslista.SpikeSlabNet, bayeslista.SpikeSlab\n"
        "heavy = {'matplotlib', 'dask', 'distributed', 'mlxtend', 'plotly', 'zarr', 'torch', 'typer'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
