"""The learner of BayesLISTA: arrays on the device are neither copied nor saved, and follow the posterior."""

import pickle
from copy import copy, deepcopy

import jax
import numpy as np
import pytest

from bayeslista.bayes_lista.variational_fit import VariationalLearner
from bayeslista.datasets import make_sparse_codes
from bayeslista.io.records import write_record

DATA = make_sparse_codes(n_train=40, n_test=4, n_observed=6, n_components=8, random_state=0)


@pytest.fixture
def learner():
    with jax.enable_x64(True):
        learner = VariationalLearner.start(DATA.design_matrix, DATA.Y_train, DATA.B_train, 2, None, 0.2)
        pairs = DATA.Y_train / learner.units.observation, DATA.B_train / learner.units.code
        learner.learn(*pairs, np.random.default_rng(0), 2, 0.0)
        yield learner


def test_device_arrays_are_made_once_and_are_no_part_of_copies_pickles_and_files(learner, tmp_path):
    expected = learner.moments(DATA.Y_test)
    arrays = learner._on_device()
    assert learner._on_device() is arrays
    for other in (copy(learner), deepcopy(learner), pickle.loads(pickle.dumps(learner))):
        assert other._device_arrays is None
        for ours, theirs in zip(other.moments(DATA.Y_test), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    write_record(tmp_path / "used", learner)
    write_record(tmp_path / "copy", copy(learner))
    assert (tmp_path / "used").read_bytes() == (tmp_path / "copy").read_bytes()


def test_device_arrays_follow_updates_of_the_posterior(learner):
    before = learner.moments(DATA.Y_test)[0]
    learner.filter_once(DATA.Y_train / learner.units.observation, DATA.B_train / learner.units.code)
    after = learner.moments(DATA.Y_test)[0]
    assert np.abs(after - before).max() > 0
    np.testing.assert_array_equal(copy(learner).moments(DATA.Y_test)[0], after)


@pytest.fixture(scope="module")
def stream():
    return make_sparse_codes(n_train=400, n_test=200, n_observed=10, n_components=14, noise_std=0.1, random_state=1)


def _after(stream, sizes, design_matrix, stream_of=None):
    """A learner of the first 20 pairs, then of a stream cut into pieces; its error on the test pairs."""
    with jax.enable_x64(True):
        learner = VariationalLearner.start(design_matrix, stream.Y_train, stream.B_train, 3, None, 0.2)
        units, later = learner.units, stream_of or stream
        learner.learn(stream.Y_train[:20] / units[0], stream.B_train[:20] / units[1], np.random.default_rng(0), 15, 0.0)
        before = _error(learner, later)
        Y, B = later.Y_train[20:] / units[0], later.B_train[20:] / units[1]
        for begin, end in zip([0, *sizes], [*sizes, len(B)], strict=True):
            learner.learn_stream(Y[begin:end], B[begin:end], 15, 0.0)
        return before, _error(learner, later), learner


def _error(learner, data):
    mean = learner.moments(data.Y_test)[0]
    return float(np.mean((mean - data.B_test) ** 2))


def test_a_stream_after_a_fit_learns_and_may_be_cut_anywhere(stream):
    before, whole, _ = _after(stream, [], stream.design_matrix)
    _, cut, learner = _after(stream, [1, 130, 210], stream.design_matrix)
    assert whole < 0.9 * before
    assert cut == pytest.approx(whole, rel=1e-6)
    assert learner.memory.n_seen == 380


def test_a_matrix_that_the_stream_contradicts_is_estimated_instead(stream):
    other = make_sparse_codes(n_train=400, n_test=200, n_observed=10, n_components=14, noise_std=0.1, random_state=2)
    before, after, learner = _after(stream, [], stream.design_matrix, other)
    assert after < 0.5 * before
    assert np.abs(learner.design_matrix - other.design_matrix).max() < 0.2
