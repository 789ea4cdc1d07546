"""The demo: an ImageNet classifier from PyPI, two shipped detectors, and photographs that other packages carry."""
