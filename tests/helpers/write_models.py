"""Write the model files that tests read, and what they predict: python tests/helpers/write_models.py."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "io"))

if __name__ == "__main__":
    from test_records import KEPT, NAMES, estimators, make_data

    data = make_data()
    predictions = {}
    for name in NAMES[:-1]:
        model = estimators(data)[name].fit(data.Y_train, data.B_train)
        if name == "spike_slab_net":
            model.calibrate(data.Y_test, data.B_test)
        model.save(KEPT / f"{name}.safetensors")
        predictions[name] = model.predict(data.Y_test[:3])
    np.savez(KEPT / "predictions.npz", **predictions)
