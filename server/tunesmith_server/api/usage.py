"""Route /v1/usage: hours of GPU or CPU time that jobs used in the last days."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tunesmith_schema import DeviceUsage
from tunesmith_server.scheduling import usage_report
from tunesmith_server.scheduling.usage_report import Group

from .deps import KeyRoute, PrincipalDep, ReaderDep

router = APIRouter(tags=["usage"], route_class=KeyRoute)


@router.get("/usage")
def usage(
    principal: PrincipalDep,
    session: ReaderDep,
    days: Annotated[int, Query(ge=1, le=366)] = 30,
    group_by: Annotated[list[Group] | None, Query(max_length=4)] = None,
) -> DeviceUsage:
    """Show the device-time that the jobs of your project used; an admin gets all projects.
    `group_by` may be repeated; the default is `project`."""
    only = None if principal.is_admin else principal.project_id
    return usage_report.report(session, days, group_by or ["project"], only)
