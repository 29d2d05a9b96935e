"""Which settings decided the first objective: the share of its variance that each explains."""

from importlib.util import find_spec

from ksim.study.tuning.trials import Trials

#: Fewer trials tell nothing.
_FEWEST = 10


def importance(tuning: Trials) -> dict[str, float]:
    """The share of each setting, most important first, by a forest that is fitted to the trials (fANOVA).

    Empty without Optuna or scikit-learn, and where fewer than ten trials ran to their end.
    """
    told = [(point, point.value(tuning.wanted[0].key)) for point in tuning.points]
    known = [(point, value) for point, value in told if value is not None]
    if len(known) < _FEWEST or find_spec("optuna") is None or find_spec("sklearn") is None:
        return {}
    import optuna
    from optuna.importance import FanovaImportanceEvaluator, get_param_importances

    from ksim.study.tuning.search import proposal_of, quiet

    distributions = tuning.space.distributions()
    with quiet():
        study = optuna.create_study()
        study.add_trials([optuna.create_trial(params=dict(proposal_of(tuning.space, point.settings)), value=value,
                                              distributions=distributions) for point, value in known])
        shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0))
    return {key: float(share) for key, share in shares.items()}
