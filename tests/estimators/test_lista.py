"""LISTA as an estimator: learning, stopping, seeds, scales and what it reports."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from bayeslista import load, metrics
from bayeslista.datasets import make_sparse_codes
from bayeslista.estimators import ISTA, LISTA, NumericalWarning
from bayeslista.out_of_core import fit_stream

K, D, N = 10, 15, 120


def nmse(model, observations, codes):
    return metrics.nmse(codes, model.predict(observations))


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((K, D))
    codes = rng.standard_normal((2 * N, D)) * (rng.random((2 * N, D)) < 0.2)
    codes[:, 0] += 0.1
    observations = codes @ X.T + 0.1 * rng.standard_normal((2 * N, K))
    return X, observations[:N], codes[:N], observations[N:], codes[N:]


@pytest.mark.no_cover
@parametrize_with_checks([LISTA()])
def test_scikit_learn_conformance(estimator, check):
    check(estimator)


@pytest.mark.parametrize("coupled_weights", [True, False])
def test_learning_beats_the_start(pairs, coupled_weights):
    X, observations, codes, *test = pairs
    model = LISTA(4, design_matrix=X, coupled_weights=coupled_weights, random_state=0).fit(observations, codes)
    start = ISTA(4, design_matrix=X).fit(observations, codes)
    assert nmse(model, *test) < 0.9 * nmse(start, *test)
    assert model.step_inverse_ == pytest.approx(start.step_inverse_, rel=1e-12)
    assert model.encoder_.shape == (D, K)
    assert model.recurrent_.shape == (D, D)
    assert model.shrinkage_.shape == model.momentum_.shape == model.step_size_.shape == (4,)
    assert (model.shrinkage_ >= 0).all()


@pytest.mark.parametrize("start", ["ista", "lmmse"])
@pytest.mark.parametrize("shrinkage", [0.05, "auto"])
def test_momentum_helps_from_either_start(pairs, start, shrinkage):
    X, observations, codes, *test = pairs
    models = [
        LISTA(6, design_matrix=X, start=start, shrinkage=shrinkage, learn_momentum=learned, random_state=0)
        for learned in (True, False)
    ]
    with_momentum, plain = (model.fit(observations, codes) for model in models)
    assert nmse(with_momentum, *test) < 0.97 * nmse(plain, *test)
    assert with_momentum.momentum_.any()
    assert not plain.momentum_.any()
    assert (plain.step_size_ == 1).all()


def test_the_design_matrix_may_be_left_out(pairs):
    _, observations, codes, *test = pairs
    model = LISTA(4, random_state=0).fit(observations, codes)
    assert nmse(model, *test) < nmse(ISTA(4).fit(observations, codes), *test)


def test_the_same_seed_gives_the_same_bits(pairs):
    X, observations, codes, *_ = pairs
    one, other, third = (
        LISTA(4, design_matrix=X, max_iter=3, random_state=seed).fit(observations, codes) for seed in (7, 7, 8)
    )
    np.testing.assert_array_equal(one.encoder_, other.encoder_)
    np.testing.assert_array_equal(one.recurrent_, other.recurrent_)
    np.testing.assert_array_equal(one.shrinkage_, other.shrinkage_)
    assert (one.encoder_ != third.encoder_).any()


def test_a_held_threshold_stays(pairs):
    X, observations, codes, *_ = pairs
    model = LISTA(4, design_matrix=X, shrinkage=0.07, learn_shrinkage=False, max_iter=3, random_state=0)
    np.testing.assert_allclose(model.fit(observations, codes).shrinkage_, 0.07, rtol=1e-12)


def test_no_tolerance_makes_all_passes_and_keeps_the_best(pairs):
    X, observations, codes, *_ = pairs
    model = LISTA(4, design_matrix=X, max_iter=60, tol=0, n_iter_no_change=1, learning_rate=0.2, random_state=0)
    model.fit(observations, codes)
    errors = model.history_["held_out_error"]
    assert model.n_iter_ == len(errors) == 60
    assert {len(values) for values in model.history_.values()} == {60}
    assert model.diagnostics_["best_epoch"] == np.argmin(errors) + 1 < 60
    held_out = np.random.default_rng(np.random.RandomState(0).randint(2**31 - 1)).permutation(N)[: N // 10]
    error = np.mean((model.predict(observations[held_out]) - codes[held_out]) ** 2)
    assert error == pytest.approx(errors.min(), rel=1e-9)


def test_training_stops_when_held_out_pairs_stop_improving(pairs):
    X, observations, codes, *_ = pairs
    model = LISTA(4, design_matrix=X, n_iter_no_change=3, random_state=0).fit(observations, codes)
    assert model.n_iter_ < model.max_iter
    assert model.diagnostics_["n_held_out"] == N // 10


@pytest.mark.parametrize("n", [1, 5])
def test_too_few_pairs_to_hold_any_out_are_all_trained_on(pairs, n):
    X, observations, codes, *_ = pairs
    model = LISTA(4, design_matrix=X, random_state=0, max_iter=20).fit(observations[:n], codes[:n])
    assert model.diagnostics_["n_held_out"] == 0
    start = ISTA(4, design_matrix=X).fit(observations[:n], codes[:n])
    assert nmse(model, observations[:n], codes[:n]) < nmse(start, observations[:n], codes[:n])


@pytest.mark.parametrize("scale", [1e-150, 1e-3, 255.0, 1e100])
def test_scale_does_not_matter(pairs, scale):
    X, observations, codes, test_observations, test_codes = pairs
    plain = LISTA(4, design_matrix=X, random_state=0).fit(observations, codes)
    scaled = LISTA(4, design_matrix=X, shrinkage=0.1 * scale, random_state=0)
    scaled.fit(observations * scale, codes * scale)
    expected = nmse(plain, test_observations, test_codes)
    assert nmse(scaled, test_observations * scale, test_codes * scale) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("scale", [1e-3, 255.0])
def test_the_threshold_need_not_know_the_scale(pairs, scale):
    X, observations, codes, test_observations, test_codes = pairs
    plain = LISTA(4, design_matrix=X, random_state=0).fit(observations, codes)
    scaled = LISTA(4, design_matrix=X, random_state=0).fit(observations * scale, codes * scale)
    expected = nmse(plain, test_observations, test_codes)
    assert nmse(scaled, test_observations * scale, test_codes * scale) < 1.1 * expected


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize(
    ("observations", "codes"),
    [
        (np.zeros((N, K)), np.ones((N, D))),
        (np.ones((N, K)), np.zeros((N, D))),
        (np.zeros((N, K)), np.zeros((N, D))),
        (np.ones((N, K)), np.ones((N, D))),
    ],
    ids=["zero observations", "zero codes", "all zero", "constant columns"],
)
def test_degenerate_pairs_train_and_predict_finite_codes(observations, codes, published):
    model = LISTA.published(4, max_iter=3) if published else LISTA(4, max_iter=3)
    model.set_params(random_state=0).fit(observations, codes)
    assert np.isfinite(model.predict(observations)).all()
    assert all(np.isfinite(values).all() for values in model.history_.values())
    assert model.diagnostics_["n_skipped"] == 0


def test_single_precision_goes_through(pairs):
    X, observations, codes, *test = pairs
    model = LISTA(4, design_matrix=X, random_state=0)
    model.fit(observations.astype(np.float32), codes.astype(np.float32))
    assert model.predict(test[0]).dtype == model.encoder_.dtype == model.shrinkage_.dtype == np.float32
    double = clone(model).fit(observations, codes)
    assert nmse(model, *test) == pytest.approx(nmse(double, *test), rel=0.02)


def test_one_component_may_be_a_vector_or_a_column(pairs):
    _, observations, codes, *_ = pairs
    vector = LISTA(4, max_iter=2, random_state=0).fit(observations, codes[:, 0]).predict(observations)
    column = LISTA(4, max_iter=2, random_state=0).fit(observations, codes[:, :1]).predict(observations)
    assert vector.shape == (N,)
    np.testing.assert_array_equal(vector[:, None], column)


def test_progress_is_shown_on_request(pairs, capsys):
    X, observations, codes, *_ = pairs
    LISTA(4, design_matrix=X, max_iter=2, tol=0, random_state=0, verbose=True).fit(observations, codes)
    output = capsys.readouterr()
    assert output.out == ""
    assert "LISTA: 100%" in output.err
    assert "nmse=0." in output.err


def test_the_published_recipe_is_an_ordinary_lista(pairs):
    X, observations, codes, *_ = pairs
    model = LISTA.published(4, design_matrix=X, max_iter=5, random_state=0)
    twin = LISTA(**model.get_params()).fit(observations, codes)
    np.testing.assert_array_equal(clone(model).fit(observations, codes).encoder_, twin.encoder_)
    assert (twin.shrinkage_ == 0.1).all()
    assert twin.n_iter_ == 5
    assert twin.diagnostics_["n_batches"] == 5 * N
    assert twin.history_["training_error"][-1] < twin.history_["training_error"][0]


def test_plain_descent_may_learn_its_thresholds_too(pairs):
    X, observations, codes, *_ = pairs
    model = LISTA.published(4, design_matrix=X, max_iter=5, random_state=0).set_params(learn_shrinkage=True)
    assert (model.fit(observations, codes).shrinkage_ != 0.1).all()


def test_divergence_is_skipped_counted_and_told(pairs):
    X, observations, codes, *_ = pairs
    model = LISTA.published(4, design_matrix=X, max_iter=3, random_state=0).set_params(learning_rate=1e3)
    with pytest.warns(NumericalWarning, match=r"mini-batches had a gradient that is not finite.*Lower learning_rate"):
        model.fit(observations * 255, codes * 255)
    start = ISTA(4, design_matrix=X).fit(observations, codes)
    assert model.diagnostics_["n_skipped"] > 0
    assert model.diagnostics_["best_epoch"] == 0
    np.testing.assert_allclose(model.encoder_, start.encoder_, rtol=1e-12)
    assert not any(np.isnan(values).any() for values in model.history_.values())


def test_searches_work(pairs):
    X, observations, codes, *_ = pairs
    search = GridSearchCV(LISTA(4, design_matrix=X, random_state=0), {"max_iter": [1, 20]}, cv=2)
    assert search.fit(observations, codes).best_params_ == {"max_iter": 20}


def streamed(model, observations, codes, *cuts):
    for start, stop in zip((0, *cuts), (*cuts, len(codes)), strict=True):
        model.partial_fit(observations[start:stop], codes[start:stop])
    return model


@pytest.mark.parametrize("known", [True, False])
def test_a_stream_gives_the_same_network_however_it_is_cut(pairs, known):
    X, observations, codes, *_ = pairs
    design_matrix = X if known else None
    whole = LISTA(3, design_matrix=design_matrix, max_iter=5).partial_fit(observations, codes)
    cut = streamed(LISTA(3, design_matrix=design_matrix, max_iter=5), observations, codes, 1, 30, 101)
    for name in ("encoder_", "recurrent_", "shrinkage_", "momentum_", "design_matrix_"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))
    assert whole.n_iter_ == 5


def test_a_stream_begins_at_the_untrained_start_and_learns_from_a_hundred_pairs_on(pairs):
    X, observations, codes, *test = pairs
    model = LISTA(4, design_matrix=X).partial_fit(observations[:99], codes[:99])
    assert model.n_iter_ == 0
    assert not model.momentum_.any()
    before = nmse(model, *test)
    model.partial_fit(observations[99:], codes[99:])
    assert model.n_iter_ > 0
    assert nmse(model, *test) < 0.95 * before


def test_a_stream_after_a_fit_learns_from_more_pairs():
    data = make_sparse_codes(900, 300, K, D, random_state=0)
    model = LISTA(4, design_matrix=data.design_matrix, random_state=0).fit(data.Y_train[:100], data.B_train[:100])
    before = nmse(model, data.Y_test, data.B_test)
    streamed(model, data.Y_train[100:], data.B_train[100:], 300, 333)
    whole = LISTA(4, design_matrix=data.design_matrix, random_state=0).fit(data.Y_train, data.B_train)
    assert nmse(model, data.Y_test, data.B_test) < min(before, 1.08 * nmse(whole, data.Y_test, data.B_test))


def test_a_stream_follows_a_matrix_that_changes():
    data, other = (make_sparse_codes(400, 300, K, D, random_state=seed) for seed in (0, 1))
    model = LISTA(4, design_matrix=data.design_matrix, random_state=0).fit(data.Y_train, data.B_train)
    before = nmse(model, other.Y_test, other.B_test)
    model.partial_fit(other.Y_train, other.B_train)
    again = LISTA(4, design_matrix=other.design_matrix, random_state=0).fit(other.Y_train, other.B_train)
    assert nmse(model, other.Y_test, other.B_test) < 1.4 * nmse(again, other.Y_test, other.B_test) < before


def test_a_bad_chunk_leaves_the_network_as_it_was(pairs):
    X, observations, codes, *test = pairs
    model = LISTA(3, design_matrix=X, max_iter=3).partial_fit(observations[:110], codes[:110])
    before, n_seen = model.predict(test[0]), model._memory.n_seen
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(observations[:, 1:], codes)
    with pytest.raises(ValueError, match="y has shape"):
        model.partial_fit(observations, codes[:, 1:])
    with pytest.raises(ValueError, match="n_layers=4, but the network to go on from has 3 layers"):
        model.set_params(n_layers=4).partial_fit(observations, codes)
    np.testing.assert_array_equal(model.predict(test[0]), before)
    assert model._memory.n_seen == n_seen


def test_a_stream_goes_on_from_a_file(pairs, tmp_path):
    X, observations, codes, *test = pairs
    model = LISTA(3, design_matrix=X, max_iter=3).partial_fit(observations[:60], codes[:60])
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    for each in (model, again):
        each.partial_fit(observations[60:], codes[60:])
    np.testing.assert_array_equal(again.predict(test[0]), model.predict(test[0]))
    assert again.n_iter_ == 3


def test_a_checkpointed_stream_goes_on(pairs, tmp_path):
    X, observations, codes, *test = pairs
    options = {"batch_size": 32, "checkpoint": tmp_path / "model.safetensors", "every": 40}
    fit_stream(LISTA(3, design_matrix=X, max_iter=3), (observations[:80], codes[:80]), **options)
    model = fit_stream(LISTA(3, design_matrix=X, max_iter=3), (observations, codes), **options)
    whole = LISTA(3, design_matrix=X, max_iter=3).partial_fit(observations, codes)
    np.testing.assert_array_equal(model.predict(test[0]), whole.predict(test[0]))
