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
