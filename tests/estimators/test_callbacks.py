"""Callbacks of scikit-learn: a task for every epoch, early stopping, and nothing where there are none."""

import importlib.util
import sys

import numpy as np
import pytest
from sklearn.base import clone

import bayeslista
from bayeslista import LISTA, BayesLISTA, SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.estimators import NumericalWarning, progress

callback = pytest.importorskip("sklearn.callback")

ESTIMATORS = {
    "LISTA": LISTA(2, max_iter=3, tol=0, random_state=0),
    "BayesLISTA": BayesLISTA(2, max_iter=3, tol=0, random_state=0),
    "adf": BayesLISTA(1, max_iter=3, tol=0, inference="adf", random_state=0),
    "SpikeSlabNet": SpikeSlabNet(2, mode="fast", training="none", random_state=0),
}
TASKS = {
    "LISTA": ["epoch"] * 3,
    "BayesLISTA": ["epoch"] * 4,  # the last is what follows the epochs
    "adf": ["epoch"] * 4,
    "SpikeSlabNet": ["model", "layers"],
}


class Recorder:
    """Keeps what it is told, and asks to stop after some tasks."""

    def __init__(self, stop_after=None):
        self.events, self.scores, self.stop_after = [], [], stop_after

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context, *, X=None, y=None):
        assert X.shape == (40, 6)
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, fitted_estimator=None):
        self.events.append(f"end {context.task_name}")
        if fitted_estimator is not None and y is not None:
            self.scores.append(fitted_estimator.score(X, y))
        return self.stop_after is not None and context.task_id + 1 >= self.stop_after


@pytest.fixture(scope="module")
def data():
    return make_sparse_codes(n_train=40, n_test=5, n_observed=6, n_components=8, random_state=0)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_epoch_is_a_task(data, name):
    recorder, plain = Recorder(), clone(ESTIMATORS[name]).fit(data.Y_train, data.B_train)
    model = clone(ESTIMATORS[name]).set_callbacks(recorder).fit(data.Y_train, data.B_train)
    between = [event for task in TASKS[name] for event in (f"begin {task}", f"end {task}")]
    assert recorder.events == ["setup", "begin fit", *between, "end fit", "teardown"]
    assert recorder.scores[-1] == model.score(data.Y_train, data.B_train)
    assert len(recorder.scores) == (4 if name == "LISTA" else 1)  # others can predict at the end only
    np.testing.assert_array_equal(model.predict(data.Y_test), plain.predict(data.Y_test))


@pytest.mark.parametrize("name", ["LISTA", "BayesLISTA", "adf"])
def test_a_callback_can_end_the_training(data, name):
    model = clone(ESTIMATORS[name]).set_callbacks(Recorder(stop_after=2)).fit(data.Y_train, data.B_train)
    shorter = clone(ESTIMATORS[name]).set_callbacks(Recorder()).fit(data.Y_train, data.B_train)
    assert model.n_iter_ == 2
    assert shorter.n_iter_ == 3
    assert np.isfinite(model.predict(data.Y_test)).all()


def test_observations_alone_are_watched_too(data):
    recorder = Recorder()
    model = clone(ESTIMATORS["SpikeSlabNet"]).set_params(design_matrix=data.design_matrix).set_callbacks(recorder)
    model.fit(data.Y_train)
    assert recorder.events.count("end layers") == 1


def test_callbacks_are_torn_down_after_a_fault(data):
    recorder = Recorder()
    with pytest.raises(ValueError, match="design_matrix has shape"):
        LISTA(design_matrix=np.eye(3)).set_callbacks(recorder).fit(data.Y_train, data.B_train)
    assert recorder.events == []
    recorder.on_fit_task_end = None
    with pytest.raises(TypeError):
        clone(ESTIMATORS["LISTA"]).set_callbacks(recorder).fit(data.Y_train, data.B_train)
    assert recorder.events[-1] == "teardown"


def test_the_progress_bar_of_scikit_learn_works(data, capsys):
    pytest.importorskip("rich")
    clone(ESTIMATORS["LISTA"]).set_callbacks(callback.ProgressBar()).fit(data.Y_train, data.B_train)
    assert "LISTA - fit" in capsys.readouterr().out


def test_callbacks_are_not_saved(data, tmp_path):
    model = clone(ESTIMATORS["LISTA"]).set_callbacks(Recorder()).fit(data.Y_train, data.B_train)
    model.save(tmp_path / "model.safetensors")
    loaded = bayeslista.load(tmp_path / "model.safetensors")
    assert not hasattr(loaded, "_skl_callbacks")
    np.testing.assert_array_equal(loaded.predict(data.Y_test), model.predict(data.Y_test))


def test_warnings_point_at_the_file_of_the_user(data):
    model = LISTA(30, optimizer="sgd", learning_rate=1e30, max_iter=1, learn_shrinkage=False, random_state=0)
    with pytest.warns(NumericalWarning) as caught:
        model.fit(data.Y_train, data.B_train)
    assert [warning.filename for warning in caught] == [__file__]


def test_without_callbacks_in_scikit_learn_fits_go_unwatched(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.callback", None)
    spec = importlib.util.spec_from_file_location("without_callbacks", progress.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    class Plain(module.CallbackSupportMixin):
        @module.with_callbacks
        def fit(self):
            """Fit."""
            with module.watched(self, (data.Y_train,), 1) as watch:
                watch.begin()
                return watch.end_epoch(0.5)

    assert Plain().fit() is False
    assert not hasattr(Plain, "set_callbacks")
    assert Plain.fit.__doc__ == "Fit."
