"""SpikeSlabNet on operators: learning from one signal, uncertainty, what is the same as with matrices, and refusals."""

import subprocess
import sys
import warnings

import numpy as np
import pylops
import pytest
from scipy.sparse import csr_array, random_array
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from bayeslista import SpikeSlabNet, load
from bayeslista.datasets import make_sparse_codes
from bayeslista.estimators import NumericalWarning
from bayeslista.metrics import nmse
from bayeslista.operators import Convolution, MatrixOperator, PartialDCT, PartialFourier, Wavelet

GIVEN = {"prob_active": 0.2, "slab_var": 1.0, "noise_std": 0.5}


@pytest.fixture(scope="module")
def large():
    """Codes of 2,000 coefficients behind a sparse matrix that is too large to become a dense one."""
    random = np.random.default_rng(0)
    matrix = csr_array(random_array((1000, 2000), density=0.05, rng=random, data_sampler=random.standard_normal))
    codes = random.standard_normal((2, 2000)) * (random.random((2, 2000)) < 0.1)
    return matrix, codes, codes @ matrix.T + 0.1 * random.standard_normal((2, 1000))


@pytest.fixture(scope="module")
def image():
    """Wavelet coefficients of a piecewise smooth image, and 40 % of the cosine transform of it."""
    random = np.random.default_rng(1)
    x, y = np.meshgrid(np.linspace(-1, 1, 64), np.linspace(-1, 1, 64))
    picture = (np.hypot(x - 0.2, y) < 0.5) + 0.5 * (np.abs(x + y) < 0.4) + 0.3 * x
    wavelet = Wavelet((64, 64), "haar", level=3)
    low = np.flatnonzero((np.add.outer(np.arange(64), np.arange(64)) < 20).ravel())
    rest = np.setdiff1d(np.arange(64 * 64), low)
    indices = np.concatenate([low, random.choice(rest, 1400, replace=False)])
    operator = PartialDCT((64, 64), np.sort(indices)) @ wavelet
    codes = wavelet.rmatvec(picture.reshape(1, -1))
    return operator, codes, operator.matvec(codes) + 0.02 * random.standard_normal((1, operator.shape[0]))


def test_one_signal_teaches_noise_and_prior_of_a_sparse_matrix(large):
    matrix, codes, observations = large
    model = SpikeSlabNet(mode="fast", design_matrix=matrix).fit(observations[:1])
    assert model.noise_std_ == pytest.approx(0.1, rel=0.15)
    assert model.prob_active_ == pytest.approx(0.1, rel=0.15)
    assert model.slab_var_ == pytest.approx(1.0, rel=0.2)
    dist = model.predict_dist(observations)
    assert nmse(codes, dist.mean()) < 0.02
    low, high = dist.interval(0.9)
    active = codes != 0
    assert 0.85 < np.mean((low <= codes) & (codes <= high), where=active) < 0.95


def test_answers_of_what_is_given_need_no_fit(large):
    matrix, codes, observations = large
    model = SpikeSlabNet(mode="fast", design_matrix=matrix, prob_active=0.1, slab_var=1.0, noise_std=0.1)
    mean, std = model.predict(observations, return_std=True)
    assert nmse(codes, mean) < 0.02
    assert 0.7 < np.mean((mean - codes) ** 2) / np.mean(std**2) < 1.4
    again = clone(model).fit()
    np.testing.assert_array_equal(again.predict(observations), mean)
    assert again.transform(observations).shape == codes.shape


def test_pairs_teach_the_prior_in_closed_form(large):
    matrix, codes, observations = large
    model = SpikeSlabNet(mode="fast", design_matrix=matrix).fit(observations, codes)
    assert model.noise_std_ == pytest.approx(np.sqrt(np.mean((observations - codes @ matrix.T) ** 2)), rel=1e-6)
    assert model.prob_active_ == pytest.approx(np.mean(codes != 0), rel=1e-2)
    assert model.slab_var_ == pytest.approx(np.mean(codes[codes != 0] ** 2), rel=1e-6)


def test_what_is_given_is_held_and_the_rest_is_learned(large):
    matrix, _, observations = large
    model = SpikeSlabNet(mode="fast", design_matrix=matrix, noise_std=0.2, slab_var=0.5).fit(observations)
    assert model.noise_std_ == pytest.approx(0.2)
    assert model.slab_var_ == pytest.approx(0.5)
    assert 0.03 < model.prob_active_ < 0.2


def test_labels_share_scale_and_probability(large):
    matrix, _, _ = large
    random = np.random.default_rng(2)
    labels = np.repeat([7, 3], 1000)  # any whole numbers
    active = random.random(2000) < np.where(labels == 7, 0.02, 0.2)
    codes = random.standard_normal((1, 2000)) * active * np.where(labels == 7, 5.0, 0.5)
    observations = codes @ matrix.T + 0.2 * random.standard_normal((1, 1000))
    model = SpikeSlabNet(mode="fast", design_matrix=matrix, prior_labels=labels).fit(observations)
    np.testing.assert_allclose(model.prob_active_, [0.2, 0.02], rtol=0.35)  # in the order of the labels
    np.testing.assert_allclose(np.sqrt(model.slab_var_), [0.5, 5.0], rtol=0.3)
    alike = SpikeSlabNet(mode="fast", design_matrix=matrix).fit(observations)
    assert nmse(codes, model.predict(observations)) < 0.95 * nmse(codes, alike.predict(observations))


def test_priors_of_every_coefficient_are_used(large):
    matrix, codes, observations = large
    noisy = observations + np.random.default_rng(3).standard_normal(observations.shape)
    prob = np.where(codes[0] != 0, 0.9, 1e-3)
    model = SpikeSlabNet(mode="fast", design_matrix=matrix, prob_active=prob, slab_var=np.ones(2000), noise_std=1.0)
    plain = SpikeSlabNet(mode="fast", design_matrix=matrix, prob_active=0.1, slab_var=1.0, noise_std=1.0)
    assert nmse(codes[:1], model.predict(noisy[:1])) < 0.7 * nmse(codes[:1], plain.predict(noisy[:1]))
    assert nmse(codes[1:], plain.predict(noisy[1:])) < 0.7 * nmse(codes[1:], model.predict(noisy[1:]))


def test_an_image_is_recovered_from_a_part_of_its_cosine_transform(image):
    operator, codes, observations = image
    model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations)
    dist = model.predict_dist(observations)
    zero_filled = operator.rmatvec(observations)
    assert nmse(codes, dist.mean()) < 0.5 * nmse(codes, zero_filled)
    assert len(model.prob_active_) == len(np.unique(operator.subbands))
    low, high = dist.interval(0.9)
    assert np.mean((low <= codes) & (codes <= high)) > 0.85
    given = SpikeSlabNet(mode="fast", design_matrix=operator, prob_active=0.2, slab_var=1.0, noise_std=0.02)
    assert np.isfinite(given.predict(observations)).all()
    fresh = model.predict(observations * (1 + 1e-9))  # not the observations of the fit, whose answers are kept
    assert nmse(codes, fresh) < 0.6 * nmse(codes, zero_filled)


def test_signals_do_not_depend_on_their_company(image):
    operator, _, observations = image
    random = np.random.default_rng(0)
    many = np.concatenate([observations, observations + 0.01 * random.standard_normal((2, observations.shape[1]))])
    model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations)
    together = model.predict(many)
    alone = np.concatenate([model.predict(row[None]) for row in many])
    np.testing.assert_allclose(together, alone, atol=0.02 * np.abs(together).max())
    np.testing.assert_array_equal(together, model.predict(many))


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
def test_units_of_observations_and_codes_do_not_matter(image, scale):
    operator, _, observations = image
    model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations)
    scaled = clone(model).fit(observations * scale)
    np.testing.assert_allclose(
        scaled.predict(observations * scale), scale * model.predict(observations), rtol=1e-3, atol=1e-3 * scale
    )


def test_single_precision_stays_and_agrees(image):
    operator, codes, observations = image
    single = observations.astype(np.float32)
    model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(single)
    dist = model.predict_dist(single)
    assert dist.dtype == np.float32
    double = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations).predict(observations)
    assert nmse(codes, dist.mean()) == pytest.approx(nmse(codes, double), rel=0.1)


@pytest.mark.parametrize(
    "given", [aslinearoperator, csr_array, MatrixOperator, lambda X: (X.__matmul__, X.T.__matmul__)]
)
@pytest.mark.parametrize("mode", ["fast", "accurate", "exact"])
def test_small_operators_have_the_answers_of_their_matrices(given, mode):
    data = make_sparse_codes(n_train=20, n_test=5, n_observed=15, n_components=20, random_state=0)
    models = [
        SpikeSlabNet(mode=mode, design_matrix=matrix, training="none", random_state=0, **GIVEN)
        for matrix in (data.design_matrix, given(data.design_matrix))
    ]
    answers = [model.fit(data.Y_train).predict(data.Y_test) for model in models]
    np.testing.assert_allclose(*answers, atol=1e-10)
    if mode == "fast" and not isinstance(models[1].design_matrix, tuple):
        unfitted = clone(models[1]).predict(data.Y_test)
        np.testing.assert_allclose(unfitted, clone(models[0]).predict(data.Y_test), atol=1e-10)


def test_operators_of_pylops_work_as_they_are():
    size = 2048
    operator = pylops.signalprocessing.Convolve1D(size, h=np.hanning(9), offset=4, dtype="float64")
    random = np.random.default_rng(0)
    codes = 3 * random.standard_normal((1, size)) * (random.random((1, size)) < 0.03)
    observations = (operator @ codes[0])[None] + 0.05 * random.standard_normal((1, size))
    model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations)
    assert nmse(codes, model.predict(observations)) < 0.2
    exact = SpikeSlabNet(mode="fast", design_matrix=Convolution(np.hanning(9), (size,))).fit(observations)
    assert nmse(codes, exact.predict(observations)) < 0.2


def test_a_strongly_correlated_operator_ends_in_numbers(image):
    # Running sums: neighbouring columns are almost alike.
    size = 3000
    operator = pylops.CausalIntegration(size, dtype="float64")
    random = np.random.default_rng(0)
    codes = random.standard_normal((1, size)) * (random.random((1, size)) < 0.02)
    observations = (operator @ codes[0])[None] + 0.1 * random.standard_normal((1, size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations)
        dist = model.predict_dist(observations)
    assert np.isfinite(dist.mean()).all()
    assert np.isfinite(dist.var()).all()
    assert nmse(codes, dist.mean()) < 1.05


def test_answers_that_leave_their_observations_unexplained_are_widened_with_a_warning(large):
    matrix, _, observations = large
    model = SpikeSlabNet(mode="fast", design_matrix=matrix, prob_active=0.1, slab_var=1.0, noise_std=0.1)
    strange = np.random.default_rng(0).standard_normal((1, 1000)) * 50
    with pytest.warns(NumericalWarning, match=r"1 of 3 answers"):
        dist = model.predict_dist(np.concatenate([observations, strange]))
    assert np.isfinite(dist.var()).all()
    assert dist.var()[2].mean() > 10 * dist.var()[0].mean()
    assert model.predictive_check(observations).failed.tolist() == [False, False]


@pytest.mark.parametrize("value", [0.0, 1e-3])
def test_observations_of_next_to_nothing_have_finite_answers(large, value):
    matrix, _, _ = large
    observations = np.full((1, 1000), value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist = SpikeSlabNet(mode="fast", design_matrix=matrix).fit(observations).predict_dist(observations)
    assert np.isfinite(dist.mean()).all()
    assert np.isfinite(dist.var()).all()


def test_models_on_operators_are_saved_and_loaded(large, image, tmp_path):
    for operator, observations in ((large[0], large[2]), (image[0], image[2])):
        model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations[:1])
        model.save(tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors")
        for rows in (observations, observations * 1.01):
            np.testing.assert_array_equal(again.predict(rows), model.predict(rows))
    linear = SpikeSlabNet(mode="fast", design_matrix=aslinearoperator(large[0])).fit(large[2])
    with pytest.raises(ValueError, match="cannot be saved"):
        linear.save(tmp_path / "other.safetensors")


MATRIX = np.random.default_rng(0).standard_normal((12, 20))
OPERATOR = aslinearoperator(MATRIX)
WRONG = LinearOperator((12, 20), MATRIX.__matmul__, (2.0 * MATRIX.T).__matmul__, dtype=float)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"design_matrix": csr_array((2000, 1500)), "mode": "exact"}, r"too large to become one.*mode='fast'"),
        ({"design_matrix": csr_array((2000, 1500)), "mode": "accurate"}, r"too large to become one.*mode='fast'"),
        ({"design_matrix": MATRIX, "prior_labels": np.zeros(20, int), "mode": "accurate"}, "prior_labels are for"),
        ({"design_matrix": MATRIX, "prior_labels": np.zeros(19, int)}, r"prior_labels has shape \(19,\)"),
        ({"design_matrix": MATRIX, "prior_labels": np.zeros(20)}, "whole numbers"),
        ({"prior_labels": np.zeros(20, int)}, "need a design matrix|requires y"),
        (
            {"design_matrix": aslinearoperator(MATRIX), "prob_active": np.full(19, 0.1)},
            r"prob_active has shape \(19,\)",
        ),
        (
            {"design_matrix": aslinearoperator(MATRIX), "noise_std": np.ones(12), "prob_active": np.full(20, 0.1)},
            "noise",
        ),
        ({"design_matrix": aslinearoperator(MATRIX.T)}, "pass its transpose"),
        (
            {"design_matrix": LinearOperator((12, 20), MATRIX.__matmul__, MATRIX.T.dot(2.0).__matmul__)},
            "not the transpose",
        ),
        ({"design_matrix": aslinearoperator(MATRIX + 1j)}, "StackedReal"),
    ],
)
def test_what_does_not_fit_an_operator_is_refused(parameters, message):
    n_observed = getattr(parameters.get("design_matrix"), "shape", (12,))[0]
    observations = np.ones((3, 2000 if n_observed == 2000 else 12))
    with pytest.raises(ValueError, match=message):
        SpikeSlabNet(**{"mode": "fast", **parameters}).fit(observations)


def test_streams_and_unfitted_models_say_what_to_do(large):
    matrix, codes, observations = large
    with pytest.raises(ValueError, match="partial_fit takes sums over pairs"):
        SpikeSlabNet(mode="fast", design_matrix=matrix).partial_fit(observations, codes)
    with pytest.raises(NotFittedError, match="prob_active, slab_var, noise_std"):
        SpikeSlabNet(mode="fast", design_matrix=matrix).predict(observations)
    pair = SpikeSlabNet(mode="fast", design_matrix=(MATRIX.__matmul__, MATRIX.T.__matmul__), **GIVEN)
    with pytest.raises(ValueError, match="no shape of its own"):
        pair.fit()
    assert pair.predict(np.ones((2, 12))).shape == (2, 20)


MEMORY = """
import resource
import numpy as np
from scipy.sparse import csr_array
from bayeslista import FISTA, SpikeSlabNet
from bayeslista.operators import PartialDCT, Wavelet

random = np.random.default_rng(0)
size = 2**16
image = PartialDCT((256, 256), np.sort(random.choice(size, size // 2, replace=False))) @ Wavelet((256, 256), "haar")
ones = np.ones(size), random.integers(0, size // 8, size), np.arange(size + 1)
sparse = csr_array(ones, (size, size // 8)).T.tocsr()  # one nonzero a column, eight a row
SpikeSlabNet(mode="fast", design_matrix=PartialDCT((64,), np.arange(32))).fit(np.ones((1, 32)))  # what is imported
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit = used + 2**28 + 60 * size * 8  # arenas of threads and sixty vectors; the matrices would be 17 GB and 4 GB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
codes = random.standard_normal((1, size)) * (random.random((1, size)) < 0.02)
for operator in (image, sparse):
    observations = (operator.matvec(codes) if operator is image else codes @ operator.T) + 0.1
    FISTA(3, design_matrix=operator, shrinkage=0.1).fit(observations).predict(observations)
    model = SpikeSlabNet(3, mode="fast", design_matrix=operator, prob_active=0.02, slab_var=1.0, noise_std=0.1)
    assert np.isfinite(model.fit().predict(observations)).all()
print("enough")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the address space of the process")
def test_memory_is_some_vectors():
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", MEMORY], capture_output=True, text=True, check=False)
    assert found.stdout.strip() == "enough", found.stderr[-2000:]


def test_samples_of_frequencies_work_as_complex_observations_do():
    random = np.random.default_rng(0)
    mask = random.random(1024) < 0.5
    operator = PartialFourier((1024,), mask)
    codes = random.standard_normal((1, 1024)) * (random.random((1, 1024)) < 0.05)
    measured = np.fft.fft(codes[0], norm="ortho")
    measured += 0.02 * (random.standard_normal(1024) + 1j * random.standard_normal(1024))
    observations = operator.observe(measured)[None]
    model = SpikeSlabNet(mode="fast", design_matrix=operator).fit(observations)
    assert nmse(codes, model.predict(observations)) < 0.05
    assert model.noise_std_ == pytest.approx(0.02 * np.sqrt(2), rel=0.2)
