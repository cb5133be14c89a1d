"""``TrainingArguments`` of transformers as fields of a job. A field that was set and has no counterpart is a mistake, never ignored."""

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any

from lmj.errors import JobError

_READ = frozenset(
    {
        "output_dir",
        "per_device_train_batch_size",
        "per_device_eval_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "max_steps",
        "learning_rate",
        "lr_scheduler_type",
        "lr_scheduler_kwargs",
        "warmup_steps",
        "optim",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
        "bf16",
        "fp16",
        "activation_checkpointing",
        "gradient_checkpointing",
        "eval_strategy",
        "eval_steps",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "load_best_model_at_end",
        "metric_for_best_model",
        "greater_is_better",
        "seed",
        "data_seed",
        "use_cpu",
        "disable_tqdm",
        "report_to",
        "run_name",
        "remove_unused_columns",
        "label_names",
    }
)
"""Fields that have a counterpart."""
_WITHOUT_EFFECT = frozenset(
    {
        # Every step is recorded, in metrics.jsonl.
        "logging_strategy",
        "logging_steps",
        "logging_first_step",
        "logging_nan_inf_filter",
        "logging_dir",
        "log_on_each_node",
        "log_level",
        "log_level_replica",
        # Rows are read by the rank that computes their micro-batch; those that do not fill a last batch are left out.
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context",
        "dataloader_in_order",
        "dataloader_drop_last",
        "eval_accumulation_steps",
        # It always is, and one loss is the mean over all of a step, whoever computes which part.
        "full_determinism",
        "average_tokens_across_devices",
        "skip_memory_metrics",
        # What scripts ask for themselves.
        "do_train",
        "do_eval",
        "do_predict",
        "local_rank",
        "save_on_each_node",
        "restore_callback_states_from_checkpoint",
    }
)
"""Fields of which nothing that is computed depends, and that have nothing to do here."""
_OPTIMIZERS = {"adamw_torch": "AdamW", "adamw_torch_fused": "AdamW", "sgd": "SGD"}
_SCHEDULES = {
    "linear": "Linear",
    "cosine": "Cosine",
    "constant": "Constant",
    "constant_with_warmup": "Constant",
    "cosine_with_restarts": "CosineWithRestarts",
    "polynomial": "Polynomial",
    "inverse_sqrt": "InverseSqrt",
}
_OPTIONS = {
    "CosineWithRestarts": {"num_cycles": "cycles"},
    "Polynomial": {"power": "power", "lr_end": "end_learning_rate"},
}


def check(args: Any) -> None:
    """Raises :class:`lmj.JobError` with a line for each field that was set and has no counterpart."""
    usual = type(args)(output_dir=args.output_dir, use_cpu=args.use_cpu)
    names = [field.name for field in dataclasses.fields(args) if field.init]
    lines = [
        f"args.{name}: {_plain(getattr(args, name))!r} has no counterpart here: leave it out"
        for name in names
        if name not in _READ | _WITHOUT_EFFECT and getattr(args, name) != getattr(usual, name)
    ]
    if lines:
        raise JobError(*lines)
    if args.data_seed not in (None, args.seed):
        raise JobError(f"args.data_seed: {args.data_seed} is not args.seed {args.seed}: one seed decides all: leave it out")
    _chosen("optim", args.optim, _OPTIMIZERS)
    _chosen("lr_scheduler_type", args.lr_scheduler_type, _SCHEDULES)
    _options(args)
    reported = [name for name in args.report_to if name != "tensorboard"]
    if reported:
        raise JobError(f"args.report_to: {', '.join(reported)}: a script's run is shown in tensorboard alone: leave it out")


def training(args: Any, rows: int) -> dict[str, Any]:
    """``training`` of the job, where there are so many training ``rows``."""
    epoch = rows // (args.per_device_train_batch_size * args.gradient_accumulation_steps)
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    fields: dict[str, Any] = {
        "batch_size": args.per_device_train_batch_size,
        "gradient_accumulation_steps": args.gradient_accumulation_steps,
        "learning_rate": args.learning_rate,
        "schedule": _chosen("lr_scheduler_type", args.lr_scheduler_type, _SCHEDULES),
        "schedule_options": _options(args),
        "warmup_steps": 0 if _plain(args.lr_scheduler_type) == "constant" else _steps(args.warmup_steps, steps),
        "optimizer": _chosen("optim", args.optim, _OPTIMIZERS),
        "weight_decay": args.weight_decay,
        "adam_beta1": args.adam_beta1,
        "adam_beta2": args.adam_beta2,
        "adam_epsilon": args.adam_epsilon,
        "max_grad_norm": args.max_grad_norm or None,
        "seed": args.seed,
        "precision": "BFloat16" if args.bf16 else "Float16" if args.fp16 else "Float32",
        "gradient_checkpointing": bool(args.activation_checkpointing),
        "device": "CPU" if args.use_cpu else "Auto",
    }
    whole = float(args.num_train_epochs).is_integer() and args.max_steps <= 0
    fields |= {"epochs": int(args.num_train_epochs)} if whole else {"max_steps": max(1, steps)}
    if _plain(args.eval_strategy) == "steps":
        fields["eval_steps"] = _steps(args.eval_steps, steps)
    return fields


def checkpoint(args: Any, rows: int) -> dict[str, Any]:
    """``checkpoint`` of the job."""
    epoch = max(1, rows // (args.per_device_train_batch_size * args.gradient_accumulation_steps))
    steps = args.max_steps if args.max_steps > 0 else math.ceil(args.num_train_epochs * epoch)
    every: dict[Any, int | None] = {"epoch": epoch, "steps": _steps(args.save_steps, steps)}
    fields: dict[str, Any] = {"every_steps": every.get(_plain(args.save_strategy))}
    return fields | ({} if args.save_total_limit is None else {"keep": max(1, args.save_total_limit)})


def _steps(said: float, steps: int) -> int:
    """A number of steps, or less than 1: a part of all."""
    return math.ceil(said * steps) if 0 < said < 1 else int(said)


def _options(args: Any) -> dict[str, Any]:
    schedule = _chosen("lr_scheduler_type", args.lr_scheduler_type, _SCHEDULES)
    names, given = _OPTIONS.get(schedule, {}), args.lr_scheduler_kwargs or {}
    for name in given:
        if name not in names:
            raise JobError(
                f"args.lr_scheduler_kwargs: {name} has no counterpart here for {_plain(args.lr_scheduler_type)}: leave it out"
            )
    return {names[name]: value for name, value in given.items()}


def _chosen(field: str, value: Any, known: Mapping[str, str]) -> str:
    found = known.get(_plain(value))
    if found is None:
        raise JobError(f"args.{field}: {_plain(value)!r} has no counterpart here: use one of {', '.join(known)}")
    return found


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value
