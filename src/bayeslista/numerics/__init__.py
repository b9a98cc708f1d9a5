"""Kernels without a model: soft-thresholded Gaussians, tail ratios, precision, compilation, batching."""
