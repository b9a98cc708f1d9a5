"""Plots of regressions: inclusion probabilities and credible sets."""

import pandas as pd
import pytest

from bayeslista.decisions import CredibleSet
from bayeslista.plots import plot_credible_sets, plot_inclusion


class TestInclusion:
    TABLE = pd.DataFrame(
        {"feature": ["a", "b"], "prob_active": [0.9, 0.2], "low": [1.0, -1.0], "high": [2.0, 0.5], "mean": [1.3, 0.0]}
    )

    def test_bars_are_probabilities_and_lines_the_intervals(self):
        axes = plot_inclusion(self.TABLE)
        assert [bar.get_width() for bar in axes.patches] == [0.9, 0.2]
        strip = axes.child_axes[-1]
        assert [line.get_segments()[0][:, 0].tolist() for line in strip.collections] == [[1.0, 2.0], [-1.0, 0.5]]
        assert len(plot_inclusion(self.TABLE, n_features=1).patches) == 1
        with pytest.raises(ValueError, match="table is empty"):
            plot_inclusion(self.TABLE, n_features=0)

    def test_credible_sets_are_marked_at_their_positions(self):
        sets = [CredibleSet((0, 2), 0.97, 0.9, 1.0)]
        axes = plot_credible_sets([0.6, 0.0, 0.4], sets, position=[10.0, 20.0, 30.0])
        assert axes.lines[1].get_xydata().tolist() == [[10.0, 0.6], [30.0, 0.4]]
        assert plot_credible_sets([0.1, 0.0], []).get_legend() is None
        with pytest.raises(ValueError, match="both must be"):
            plot_credible_sets([0.1, 0.0], [], position=[1.0])
        with pytest.raises(ValueError, match=r"lie in \[0, 1\]"):
            plot_credible_sets([1.5], [])
