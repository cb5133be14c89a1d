"""Methods that subclasses of ``transformers.Trainer`` have of their own, and that ``lmj.Trainer`` calls nowhere."""

from lmj.errors import JobError

_LOSS = "compute_loss"
_HOOKS = frozenset(
    {
        _LOSS,
        "training_step",
        "prediction_step",
        "evaluation_loop",
        "create_optimizer",
        "create_scheduler",
        "create_optimizer_and_scheduler",
        "get_decay_parameter_names",
        "get_train_dataloader",
        "get_eval_dataloader",
        "get_test_dataloader",
        "_get_train_sampler",
        "_get_eval_sampler",
        "log",
    }
)


def refuse(kind: type) -> None:
    """Raises :class:`lmj.JobError`: ``kind``, a subclass, has one, or inherits it from another base; it would do nothing."""
    own = sorted(name for name in _HOOKS if hasattr(kind, name))
    if own:
        instead = " (the loss is what the model's forward gives)" if _LOSS in own else ""
        raise JobError(f"{kind.__name__} has {', '.join(own)} of its own, which lmj.Trainer does not call{instead}: leave it out")
