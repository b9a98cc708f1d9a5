"""Codes over a dictionary: a drop-in for SparseCoder that says how sure it is."""

import pickle
import runpy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.decomposition import MiniBatchDictionaryLearning, SparseCoder
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Lasso, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import bayeslista
from bayeslista import FISTA, ISTA, LISTA, BayesLISTA, SparseCodingTransformer, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.io.records import write_record
from bayeslista.metrics import coverage, nmse

K, D, N = 12, 16, 300
PRIOR = {"prob_active": 0.2, "slab_var": 1.16, "noise_std": 0.3}


def network(**parameters):
    """What compiles soonest."""
    return SpikeSlabNet(8, mode="fast", training="none", **parameters)


LEARNERS = {"SpikeSlabNet": network(), "LISTA": LISTA(2, max_iter=20), "BayesLISTA": BayesLISTA(2, max_iter=10)}
NAMES = list(LEARNERS)


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(N, 128, K, D, noise_std=0.3, random_state=0)


@pytest.fixture(scope="module")
def atoms(data):
    return data.design_matrix.T


@pytest.fixture(scope="module")
def taught(data, atoms):
    """Of every estimator that learns, one that saw observations alone."""
    return {
        name: SparseCodingTransformer(atoms, estimator=estimator, random_state=0).fit(data.Y_train)
        for name, estimator in LEARNERS.items()
    }


@pytest.fixture(scope="module")
def coder(taught):
    return taught["SpikeSlabNet"]


class AnyWidth(SparseCodingTransformer):
    """With a dictionary for whatever data a check of scikit-learn brings along."""

    def __init__(self, dictionary=None, *, estimator=None, random_state=None):
        super().__init__(dictionary, estimator=estimator, random_state=random_state)

    def _checked_dictionary(self, observations=None):
        return np.random.default_rng(0).standard_normal((4, observations.shape[1]))


@parametrize_with_checks([AnyWidth(estimator=ISTA(2))])
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


def test_it_takes_the_place_of_a_sparse_coder(data, atoms):
    ours = SparseCodingTransformer(atoms, estimator=FISTA(2000, shrinkage=0.01)).fit(data.Y_train)
    step = ours.estimator_.step_inverse_
    theirs = SparseCoder(atoms, transform_algorithm="lasso_cd", transform_alpha=0.01 * step, transform_max_iter=20_000)
    theirs.fit(data.Y_train)
    codes = ours.transform(data.Y_test)
    np.testing.assert_allclose(codes, theirs.transform(data.Y_test), atol=1e-3)
    np.testing.assert_allclose(ours.inverse_transform(codes), theirs.inverse_transform(codes))
    assert (ours.n_components_, ours.n_features_in_) == (theirs.n_components_, theirs.n_features_in_)


@pytest.mark.parametrize("name", NAMES)
def test_observations_alone_teach_nearly_what_pairs_do(data, atoms, taught, name):
    alone = taught[name]
    pairs = clone(alone).fit(data.Y_train, data.B_train)
    assert type(alone.estimator_) is type(alone.estimator)
    assert alone.prior_.prob_active == pytest.approx(0.2, abs=0.08)
    assert alone.prior_.noise_std == pytest.approx(0.3, rel=0.3)
    errors = [nmse(data.B_test, model.transform(data.Y_test)) for model in (alone, pairs)]
    assert errors[0] < 1.15 * errors[1]
    assert (pairs.prior_ is None) == (name != "SpikeSlabNet")


def test_estimators_that_are_fitted_by_hand_find_the_same_codes(data, atoms, coder):
    seeded = network(design_matrix=data.design_matrix, random_state=coder.estimator_.random_state)
    np.testing.assert_array_equal(seeded.fit(data.Y_train).predict(data.Y_test), coder.transform(data.Y_test))
    pairs = SparseCodingTransformer(atoms, estimator=ISTA(3)).fit(data.Y_train, data.B_train)
    ista = ISTA(3, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
    np.testing.assert_array_equal(pairs.transform(data.Y_test), ista.predict(data.Y_test))


def test_the_uncertainty_is_that_of_the_distribution_and_honest(data, coder):
    codes, dist = coder.transform(data.Y_test), coder.transform_dist(data.Y_test)
    np.testing.assert_array_equal(codes, dist.mean())
    np.testing.assert_array_equal(coder.transform_std(data.Y_test), dist.std())
    assert 0.6 < dist.var().mean() / np.mean((codes - data.B_test) ** 2) < 1.6
    assert coverage(dist, data.B_test, 0.9) > 0.88


def test_a_prior_that_is_given_needs_no_fit_and_is_held(data, atoms):
    given = SparseCodingTransformer(atoms, estimator=network(), **PRIOR)
    codes = given.transform(data.Y_test)
    expected = network(design_matrix=data.design_matrix, **PRIOR).predict(data.Y_test)
    np.testing.assert_array_equal(codes, expected)
    assert given.transform_std(data.Y_test).shape == codes.shape
    assert given.get_feature_names_out()[-1] == f"sparsecodingtransformer{D - 1}"
    assert not hasattr(given, "estimator_")
    within = SparseCodingTransformer(atoms, estimator=network(prob_active=0.2, slab_var=1.16), noise_std=0.3)
    np.testing.assert_array_equal(within.transform(data.Y_test), expected)
    with pytest.raises(ValueError, match=r"X has 9 features; .* pass one that fits"):
        given.transform(np.ones((2, 9)))
    for estimator in (network(), LISTA(1, max_iter=1)):
        held = clone(given).set_params(estimator=estimator).fit(data.Y_train).prior_
        assert (held.prob_active, held.noise_std) == (0.2, pytest.approx(0.3))
        np.testing.assert_allclose(held.slab_var, [1.16])


@pytest.mark.parametrize(
    ("estimator", "given", "missing"),
    [
        (None, {}, "prob_active, slab_var, noise_std"),
        (None, {"prob_active": 0.2}, "slab_var, noise_std"),
        (SpikeSlabNet(slab_var=1.0), {"prob_active": 0.2}, "noise_std"),
        (BayesLISTA(), PRIOR, r"estimator=SpikeSlabNet\(\), prob_active, slab_var, noise_std"),
    ],
)
def test_without_fit_or_prior_there_are_no_codes(data, atoms, estimator, given, missing):
    with pytest.raises(NotFittedError, match=rf"Call 'fit', .* give {missing}\.$"):
        SparseCodingTransformer(atoms, estimator=estimator, **given).transform(data.Y_test)


def test_codes_can_be_put_together_before_a_fit(data, atoms):
    together = SparseCodingTransformer(atoms).inverse_transform(data.B_test)
    np.testing.assert_allclose(together, data.B_test @ atoms)
    assert SparseCodingTransformer(atoms).inverse_transform(data.B_test.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dictionary": np.ones((K, D))}, rf"dictionary has shape \({K}, {D}\) and X has {K} features.*dictionary\.T"),
        ({"dictionary": np.ones((D, K + 1))}, "pass one that fits the data"),
        ({"dictionary": np.ones(K)}, "dictionary: Expected 2D array(?s:.*)one atom a row"),
        ({"dictionary": np.full((D, K), np.nan)}, "Input dictionary contains NaN"),
        ({"dictionary": None}, "^dictionary: (?s:.*)one atom a row"),
        ({"dictionary": [["a"]]}, "^dictionary: (?s:.*)one atom a row"),
        ({"estimator": Lasso()}, r"estimator must be one of bayeslista's estimators, got Lasso\(\); pass"),
        ({"estimator": SpikeSlabNet}, "estimator must be one of bayeslista's"),
        ({"estimator": ISTA(design_matrix=np.ones((K, D)))}, r"has a design_matrix.*leave it out of ISTA\("),
        ({"n_simulated": 0}, "'n_simulated' parameter of SparseCodingTransformer must be an int in the range"),
        ({"prob_active": 1.0}, "'prob_active' parameter of .* must be"),
        ({"noise_std": -1.0, "estimator": LISTA()}, "'noise_std' parameter of .* must be"),
        ({"random_state": "seed"}, "random_state"),
    ],
)
def test_bad_parameters_are_refused_by_name(data, atoms, parameters, message):
    coder = SparseCodingTransformer(**{"dictionary": atoms, "estimator": network()} | parameters)
    with pytest.raises(ValueError, match=message):
        coder.fit(data.Y_train)


def test_bad_data_are_refused_by_name(data, atoms, coder):
    with pytest.raises(ValueError, match=r"y has shape \(300, 3\), and codes .* \(300, 16\).*FrozenEstimator"):
        SparseCodingTransformer(atoms).fit(data.Y_train, np.ones((N, 3)))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        coder.transform(np.full((1, K), np.nan))
    with pytest.raises(ValueError, match="X has 5 features, but SparseCodingTransformer is expecting 12"):
        coder.transform(np.ones((1, 5)))
    with pytest.raises(ValueError, match=r"X has shape \(2, 12\), expected \(n_samples, 16\)"):
        coder.inverse_transform(np.ones((2, K)))
    with pytest.raises(ValueError, match=r"ISTA finds codes without their uncertainty; pass estimator=SpikeSlabNet"):
        SparseCodingTransformer(atoms, estimator=ISTA(1)).fit(data.Y_train).transform_std(data.Y_test)


def test_the_same_seed_gives_the_same_bits_and_an_own_seed_is_kept(data, atoms):
    one, two, other = (
        SparseCodingTransformer(atoms, estimator=LISTA(1, max_iter=2), n_simulated=50, random_state=seed, **PRIOR)
        .fit(data.Y_train)
        .transform(data.Y_test)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - other).max() > 0
    own = SparseCodingTransformer(atoms, estimator=LISTA(1, max_iter=1, random_state=7), n_simulated=50, **PRIOR)
    assert own.fit(data.Y_train).estimator_.random_state == 7
    assert own.estimator.design_matrix is None


def test_single_precision_stays_single(data, atoms):
    coder = SparseCodingTransformer(atoms, estimator=LISTA(1, max_iter=1), n_simulated=50, random_state=0)
    codes = coder.fit(data.Y_train.astype(np.float32)).transform(data.Y_test.astype(np.float32))
    assert codes.dtype == coder.components_.dtype == coder.inverse_transform(codes).dtype == np.float32


def test_it_takes_a_learned_dictionary_as_it_is_in_a_pipeline_with_labels(data):
    labels = (data.B_train[:, 0] != 0).astype(int)
    learner = MiniBatchDictionaryLearning(D, max_iter=3, random_state=0).fit(data.Y_train)
    coder = SparseCodingTransformer(learner.components_, estimator=network(), random_state=0)
    pipeline = make_pipeline(coder, LogisticRegression()).fit(data.Y_train, labels)
    np.testing.assert_array_equal(pipeline[0].components_, learner.components_)
    assert pipeline[0].prior_ is not None
    assert pipeline.set_params(sparsecodingtransformer__estimator__n_layers=3)[0].estimator.n_layers == 3


def test_an_atom_of_zeros_leaves_its_coefficient_as_uncertain_as_before(data, atoms):
    dead = atoms.copy()
    dead[3] = 0.0
    coder = SparseCodingTransformer(dead, estimator=network(), random_state=0).fit(data.Y_train)
    codes, std = coder.transform(data.Y_test), coder.transform_std(data.Y_test)
    assert np.isfinite(codes).all()
    prior = coder.prior_
    mean = prior.prob_active * prior.slab_weight @ prior.slab_mean
    prior_std = np.sqrt(prior.prob_active * prior.slab_weight @ (prior.slab_mean**2 + prior.slab_var) - mean**2)
    np.testing.assert_allclose(codes[:, 3], mean, atol=0.01 * prior_std)
    np.testing.assert_allclose(std[:, 3], prior_std, rtol=0.2)


@pytest.mark.parametrize("everywhere", [False, True])
def test_frames_come_out_with_their_index(data, atoms, everywhere):
    frame = pd.DataFrame(data.Y_train, columns=[f"sensor {k}" for k in range(K)], index=range(7, 7 + N))
    coder = SparseCodingTransformer(atoms, estimator=ISTA(2))
    with sklearn.config_context(transform_output="pandas" if everywhere else "default"):
        if not everywhere:
            coder.set_output(transform="pandas")
        codes = coder.fit_transform(frame)
    assert list(codes.columns) == [f"sparsecodingtransformer{d}" for d in range(D)]
    assert list(codes.index) == list(frame.index)
    assert list(coder.feature_names_in_) == list(frame.columns)
    np.testing.assert_array_equal(coder.inverse_transform(codes), codes.to_numpy() @ atoms)


def test_names_of_codes_come_back(data, atoms, tmp_path):
    names = [f"atom {d}" for d in range(D)]
    coder = SparseCodingTransformer(atoms, estimator=ISTA(2)).set_output(transform="pandas")
    coder.fit(data.Y_train, pd.DataFrame(data.B_train, columns=names))
    coder.save(tmp_path / "model")
    assert list(coder.transform(data.Y_test).columns) == names
    assert list(bayeslista.load(tmp_path / "model").get_feature_names_out()) == names


@pytest.mark.parametrize("name", NAMES)
def test_files_and_pickles_keep_every_bit(data, taught, tmp_path, name):
    model = taught[name]
    model.save(tmp_path / "model.safetensors")
    again = bayeslista.load(tmp_path / "model.safetensors")
    assert repr(again) == repr(model)
    assert type(again.estimator_) is type(model.estimator_)
    assert type(again.prior_) is type(model.prior_)
    np.testing.assert_array_equal(again.prior_.slab_var, model.prior_.slab_var)
    for each in (again, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(each.transform(data.Y_test), model.transform(data.Y_test))


def test_one_that_is_not_fitted_is_kept_as_well(data, atoms, tmp_path):
    given = SparseCodingTransformer(atoms.tolist(), estimator=network(), **PRIOR)
    given.save(tmp_path / "model")
    again = bayeslista.load(tmp_path / "model")
    assert again.dictionary == given.dictionary
    np.testing.assert_array_equal(again.transform(data.Y_test), given.transform(data.Y_test))
    SparseCodingTransformer(atoms).save(tmp_path / "model")
    with pytest.raises(NotFittedError):
        bayeslista.load(tmp_path / "model").transform(data.Y_test)


def test_classes_that_load_does_not_know_are_refused(atoms, tmp_path):
    class Mine(ISTA):
        pass

    for model in (AnyWidth(), SparseCodingTransformer(atoms, estimator=Mine())):
        with pytest.raises(ValueError, match="load cannot read"):
            model.save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    SparseCodingTransformer(atoms, estimator=ISTA()).save(tmp_path / "model")
    write_record(tmp_path / "model", {"state": {}})
    with pytest.raises(ValueError, match="holds no estimator"):
        bayeslista.load(tmp_path / "model")


@pytest.mark.no_cover
@pytest.mark.slow
def test_hidden_pixels_are_filled_in_and_their_errors_are_foretold(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["dictionary_learning.py", str(tmp_path)])
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "dictionary_learning.py"), run_name="__main__")
    assert "SparseCodingTransformer        15." in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["dictionary_learning.png"]
