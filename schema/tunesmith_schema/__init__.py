"""API contract of Tunesmith: pydantic models that every other package imports.

The package also contains the names of queues and settings, and the checks for unsafe settings. The
package imports no other package of Tunesmith.
"""

from .audit import AuditLogEntry
from .base import FROM_SERVER, Page, Request, Response
from .chat import (
    ChatAnswer,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    ChatRequest,
    ChoiceLogprobs,
    TokenLogprob,
    TopLogprob,
)
from .completions import Completion, CompletionChoice, CompletionLogprobs, CompletionRequest
from .curves import MetricColumns
from .early_stopping import EarlyStoppingRecipe, MethodName
from .errors import ErrorBody, ErrorCategory, ErrorCode, ErrorEnvelope
from .evaluation import (
    EvaluatedAnswer,
    Evaluation,
    EvaluationSummary,
    JobEvaluation,
    ModelComparison,
    ModelScores,
)
from .evaluations import (
    EvaluationCreate,
    EvaluationDeleted,
    EvaluationStatus,
    RequestedEvaluation,
    TaskResult,
    TaskResults,
)
from .events import Checkpoint, CheckpointMetrics, Event, EventKind, MetricPoint
from .file_stats import FileOverlap, FileStats, LengthBin, RepeatedRow, RowLengths, RowPair
from .files import (
    MAX_ROWS_PAGE,
    BadRows,
    DataRow,
    FileDeleted,
    FileObject,
    FilePurpose,
    FileUse,
    FileValidation,
    PromptFormat,
    RowFormat,
    RowProblem,
)
from .forks import JobFork
from .graders import Grader, MultiGrader, SingleGrader
from .grpo import GRPORecipe, RolloutRecipe
from .health import HealthState, JobHealth
from .job_files import JobFile
from .job_links import JobLink, JobLinkCreate, JobLinkCreated
from .job_validation import JobValidation, RequestProblem
from .jobs import (
    TERMINAL,
    TRANSITIONS,
    Job,
    JobCreate,
    JobCurve,
    JobDeleted,
    JobError,
    JobPatch,
    JobState,
    wire_status,
)
from .lineage import JobLineage, SelfCheck, StoredResumePoint
from .methods import (
    Hyperparameters,
    Method,
    ReinforcementHyperparameters,
    ReinforcementMethod,
    SupervisedMethod,
)
from .models import Adapter, Model, ModelDeleted, ModelTokenizer, ModelUse, StoredFile
from .organization import (
    AdminApiKey,
    AdminApiKeyCreate,
    AdminApiKeyCreated,
    AdminKeyOwner,
    CheckpointPermission,
    CheckpointPermissionCreate,
    Deleted,
    KeyOwner,
    KeyService,
    KeyUser,
    Me,
    MyProject,
    OrganizationUser,
    Project,
    ProjectApiKey,
    ProjectApiKeyCreate,
    ProjectApiKeyCreated,
    ProjectCreate,
    ProjectRole,
    ProjectUpdate,
    ProjectUser,
    ProjectUserCreate,
    ProjectUserUpdate,
    Role,
    UserCreate,
    UserRole,
    UserUpdate,
    Verb,
)
from .recipe import PROJECTIONS, Auto, LoraRecipe, PatchName, Precision, Recipe
from .recipe_fields import RecipeField, recipe_fields
from .report import (
    COMPUTE,
    ROLLOUT,
    STARTUP,
    TRAINING,
    Advice,
    AttemptSummary,
    Bound,
    BoundBy,
    JobReport,
    LayerMemory,
    PeakMemory,
    PhaseName,
    Rollouts,
    RunReport,
    Saturation,
    Throughput,
    TrainingSettings,
    Utilization,
)
from .run import (
    EXIT_STOPPED,
    Choice,
    ControlAction,
    ControlFile,
    JobFailure,
    Plan,
    RunEvent,
    RunResult,
    RunSpec,
)
from .samples import MAX_SAMPLES_PAGE, Sample, SampleStep
from .sampling import Sampling, StreamOptions, Usage
from .scheduling import (
    DeviceUsage,
    DeviceUsageItem,
    DrainRequest,
    EstimatedStart,
    KeyLimits,
    Limits,
    ProjectShare,
    Queue,
    QueuedJob,
    Reservation,
    ReservationCreate,
    ReservationDeleted,
    Scheduling,
    ShareChange,
    WaitingBecause,
    WaitingCode,
    WorkerState,
    WorkerStatus,
)
from .sessions import (
    DisplaySessionCreate,
    DisplaySessionCreated,
    PortalSession,
    PortalSessionDeleted,
)
from .storage import JanitorStatus, OrganizationStorage, ProjectStorage, StoredBytes
from .uploads import (
    MAX_PART_BYTES,
    MAX_UPLOAD_BYTES,
    MAX_UPLOAD_PARTS,
    UPLOAD_SECONDS,
    ExpiresAfter,
    Upload,
    UploadComplete,
    UploadCreate,
    UploadPart,
    UploadStatus,
)
from .worker import (
    MAX_EVENTS_PER_REPORT,
    Claim,
    ClaimedFile,
    ClaimRequest,
    Control,
    FileFindings,
    FileReading,
    Outcome,
    ReadingClaim,
    ReadingEnd,
    ReadingLease,
    ReadingResult,
    Report,
    ReportReply,
    ResumePoint,
    WorkerEnrollment,
    WorkerHello,
    WorkerWelcome,
)

# fmt: off
__all__ = [
    "COMPUTE", "EXIT_STOPPED", "FROM_SERVER", "MAX_EVENTS_PER_REPORT", "MAX_PART_BYTES",
    "MAX_ROWS_PAGE", "MAX_SAMPLES_PAGE", "MAX_UPLOAD_BYTES", "MAX_UPLOAD_PARTS", "PROJECTIONS",
    "ROLLOUT", "STARTUP", "TERMINAL", "TRAINING", "TRANSITIONS", "UPLOAD_SECONDS", "Adapter",
    "AdminApiKey", "AdminApiKeyCreate", "AdminApiKeyCreated", "AdminKeyOwner", "Advice",
    "AttemptSummary", "AuditLogEntry", "Auto", "BadRows", "Bound", "BoundBy", "ChatAnswer",
    "ChatChoice", "ChatChunk", "ChatChunkChoice", "ChatCompletion", "ChatDelta", "ChatMessage",
    "ChatRequest", "Checkpoint", "CheckpointMetrics", "CheckpointPermission",
    "CheckpointPermissionCreate", "Choice", "ChoiceLogprobs", "Claim", "ClaimRequest",
    "ClaimedFile", "Completion", "CompletionChoice", "CompletionLogprobs", "CompletionRequest",
    "Control", "ControlAction", "ControlFile", "DataRow", "Deleted", "DeviceUsage",
    "DeviceUsageItem", "DisplaySessionCreate", "DisplaySessionCreated", "DrainRequest",
    "EarlyStoppingRecipe", "ErrorBody", "ErrorCategory", "ErrorCode", "ErrorEnvelope",
    "EstimatedStart", "EvaluatedAnswer", "Evaluation", "EvaluationCreate", "EvaluationDeleted",
    "EvaluationStatus", "EvaluationSummary", "Event", "EventKind", "ExpiresAfter", "FileDeleted",
    "FileFindings", "FileObject", "FileOverlap", "FilePurpose", "FileReading", "FileStats",
    "FileUse", "FileValidation", "GRPORecipe", "Grader",
    "HealthState", "Hyperparameters", "JanitorStatus", "Job", "JobCreate", "JobCurve", "JobDeleted",
    "JobError", "JobEvaluation", "JobFailure", "JobFile", "JobFork", "JobHealth", "JobLineage",
    "JobLink", "JobLinkCreate", "JobLinkCreated", "JobPatch",
    "JobReport", "JobState", "JobValidation", "KeyLimits", "KeyOwner", "KeyService", "KeyUser",
    "LayerMemory", "LengthBin", "Limits", "LoraRecipe", "Me", "Method", "MethodName",
    "MetricColumns", "MetricPoint", "Model", "ModelComparison", "ModelDeleted", "ModelScores",
    "ModelTokenizer", "ModelUse", "MultiGrader", "MyProject", "OrganizationStorage",
    "OrganizationUser", "Outcome", "Page",
    "PatchName", "PeakMemory", "PhaseName", "Plan", "PortalSession", "PortalSessionDeleted",
    "Precision", "Project", "ProjectApiKey", "ProjectApiKeyCreate", "ProjectApiKeyCreated",
    "ProjectCreate", "ProjectRole", "ProjectShare", "ProjectStorage", "ProjectUpdate",
    "ProjectUser", "ProjectUserCreate", "ProjectUserUpdate", "PromptFormat",
    "Queue", "QueuedJob", "ReadingClaim", "ReadingEnd", "ReadingLease", "ReadingResult", "Recipe",
    "RecipeField", "ReinforcementHyperparameters", "ReinforcementMethod", "RepeatedRow", "Report",
    "ReportReply",
    "Request", "RequestProblem", "RequestedEvaluation", "Reservation", "ReservationCreate",
    "ReservationDeleted", "Response", "ResumePoint", "Role", "RolloutRecipe", "Rollouts",
    "RowFormat", "RowLengths", "RowPair", "RowProblem", "RunEvent", "RunReport", "RunResult",
    "RunSpec", "Sample",
    "SampleStep", "Sampling", "Saturation", "Scheduling", "SelfCheck", "ShareChange",
    "SingleGrader", "StoredBytes", "StoredFile", "StoredResumePoint", "StreamOptions",
    "SupervisedMethod", "TaskResult", "TaskResults", "Throughput", "TokenLogprob", "TopLogprob",
    "TrainingSettings", "Upload", "UploadComplete", "UploadCreate", "UploadPart", "UploadStatus",
    "Usage", "UserCreate", "UserRole", "UserUpdate", "Utilization", "Verb", "WaitingBecause",
    "WaitingCode", "WorkerEnrollment", "WorkerHello", "WorkerState", "WorkerStatus",
    "WorkerWelcome", "recipe_fields", "wire_status",
]
# fmt: on
