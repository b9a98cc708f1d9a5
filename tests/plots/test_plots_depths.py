"""Errors by depth: fits of several depths, and their plot."""

import numpy as np
import pytest

from bayeslista import ISTA
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from bayeslista.plots import fit_depths, plot_error_by_depth


def test_every_depth_has_the_error_of_a_fit_of_its_own():
    data = make_sparse_codes(n_train=20, n_test=5, n_observed=8, n_components=10, random_state=0)
    network = ISTA(3, design_matrix=data.design_matrix)
    errors = fit_depths(network, [7, 2], (data.Y_train, data.B_train), (data.Y_test, data.B_test))
    assert list(errors) == [7, 2]
    for depth, error in errors.items():
        model = ISTA(depth, design_matrix=data.design_matrix).fit(data.Y_train, data.B_train)
        assert error == pytest.approx(nmse(data.B_test, model.predict(data.Y_test)))
    assert network.n_layers == 3


def test_lines_go_by_depth_whatever_the_order():
    axes = plot_error_by_depth({"LISTA": {10: 0.3, 4: 0.4}, "ISTA": {4: 0.9}})
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[4, 0.4], [10, 0.3]])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["LISTA", "ISTA"]
    assert plot_error_by_depth({"LISTA": {4: 0.5}}, axes) is axes


@pytest.mark.parametrize(
    ("errors", "message"), [({}, "without any depth"), ({"a": {}}, "without any"), ({"a": {1: np.nan}}, "not finite")]
)
def test_nothing_to_draw_is_refused(errors, message):
    with pytest.raises(ValueError, match=message):
        plot_error_by_depth(errors)
