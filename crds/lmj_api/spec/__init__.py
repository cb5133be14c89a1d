"""What a user writes: ``LiveMigrationJob`` and the parts of its ``spec``, one part a file."""

from lmj_api.spec.checkpoint import Checkpoint
from lmj_api.spec.dataset import Dataset, Splits
from lmj_api.spec.hub import Hub, HubContent
from lmj_api.spec.job import JobSpec, LiveMigrationJob, Metadata
from lmj_api.spec.lifecycle import CleanPodPolicy
from lmj_api.spec.migration import Migration, MigrationStrategy, MigrationTimeout
from lmj_api.spec.model import Architecture, Lora, Model, Scratch, Task
from lmj_api.spec.network import Encryption, Network, PolicyMode
from lmj_api.spec.output import Output, Weights
from lmj_api.spec.pipeline import DataParallel, Pipeline, Strategy
from lmj_api.spec.placement import Placement, StagePlacement
from lmj_api.spec.recovery import AvoidNode, Recovery, RecoveryRule, RuleAction, Straggler, StragglerAction
from lmj_api.spec.secret import SecretKey
from lmj_api.spec.storage import AccessMode, Storage, Volume
from lmj_api.spec.streaming import Streaming
from lmj_api.spec.tracker import Tracker, TrackerKind
from lmj_api.spec.training import Device, EarlyStopping, LearningRateSchedule, Optimizer, Precision, ScheduleOptions, Training

__all__ = [
    "AccessMode",
    "Architecture",
    "AvoidNode",
    "Checkpoint",
    "CleanPodPolicy",
    "DataParallel",
    "Dataset",
    "Device",
    "EarlyStopping",
    "Encryption",
    "Hub",
    "HubContent",
    "JobSpec",
    "LearningRateSchedule",
    "LiveMigrationJob",
    "Lora",
    "Metadata",
    "Migration",
    "MigrationStrategy",
    "MigrationTimeout",
    "Model",
    "Network",
    "Optimizer",
    "Output",
    "Pipeline",
    "Placement",
    "PolicyMode",
    "Precision",
    "Recovery",
    "RecoveryRule",
    "RuleAction",
    "ScheduleOptions",
    "Scratch",
    "SecretKey",
    "Splits",
    "StagePlacement",
    "Storage",
    "Straggler",
    "StragglerAction",
    "Strategy",
    "Streaming",
    "Task",
    "Tracker",
    "TrackerKind",
    "Training",
    "Volume",
    "Weights",
]
