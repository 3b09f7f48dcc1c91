"""Events of runs as functions of the noise multiplier, small enough to be accounted in a moment."""

from understudy.privacy.events import composed_event, gaussian_event, histogram_event, sgd_event


def short_run(z):
    return sgd_event(sampling_probability=0.05, noise_multiplier=z, steps=40)


def run_with_histogram(z):
    return composed_event(histogram_event(sigma=20.0), short_run(z))


def one_shot(z):
    return gaussian_event(noise_multiplier=z)
