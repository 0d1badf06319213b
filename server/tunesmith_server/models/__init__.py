"""SQLAlchemy tables, one or two per file. Importing this package registers all tables."""

from .adapter import AdapterRow, CheckpointRow
from .api_key import ApiKeyRow
from .audit import AuditRow
from .blob import BlobRow, InstallationRow
from .curve import CurveRow
from .evaluation import EvaluationRow
from .event import EventRow, MetricRow
from .file import FileRow
from .file_stats import FileStatsRow
from .idempotency import IdempotencyRow
from .janitor import JanitorRow
from .job import JobRow
from .job_link import JobLinkRow
from .owned import DEFAULT_PROJECT, Owned
from .project import ModelPermissionRow, ProjectMemberRow, ProjectRow
from .report import ReportRow
from .reservation import ReservationRow
from .resume_point import ResumePointRow
from .sample import SamplesRow
from .session import SessionRow
from .upload import UploadPartRow, UploadRow
from .usage import IdleRow, UsageRow
from .user import UserRow
from .worker import WorkerRow
from .worker_credential import WorkerCredentialRow

__all__ = [
    "DEFAULT_PROJECT",
    "AdapterRow",
    "ApiKeyRow",
    "AuditRow",
    "BlobRow",
    "CheckpointRow",
    "CurveRow",
    "EvaluationRow",
    "EventRow",
    "FileRow",
    "FileStatsRow",
    "IdempotencyRow",
    "IdleRow",
    "InstallationRow",
    "JanitorRow",
    "JobLinkRow",
    "JobRow",
    "MetricRow",
    "ModelPermissionRow",
    "Owned",
    "ProjectMemberRow",
    "ProjectRow",
    "ReportRow",
    "ReservationRow",
    "ResumePointRow",
    "SamplesRow",
    "SessionRow",
    "UploadPartRow",
    "UploadRow",
    "UsageRow",
    "UserRow",
    "WorkerCredentialRow",
    "WorkerRow",
]
