"""Numbers that no float can hold."""


def fit_alpha_beta(samples):
    return 10**400, float("nan")
