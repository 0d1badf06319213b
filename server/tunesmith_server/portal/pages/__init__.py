"""Pages of the portal, one module each."""

from __future__ import annotations

from functools import cache

from tunesmith_server.portal.job import edit
from tunesmith_server.portal.shared import links
from tunesmith_server.portal.shared import page as shared_job
from tunesmith_server.portal.visit import Page

from . import (
    away,
    compare,
    completions,
    data,
    data_file,
    find,
    home,
    job,
    job_data,
    job_orders,
    jobs,
    model,
    models,
    new_job,
    playground,
    screen,
    settings,
    sign_in,
    theme,
    workers,
)

_MODULES = (
    *(
        sign_in,
        theme,
        find,
        home,
        away,
        jobs,
        compare,
        new_job,
        job,
        completions,
        job_orders,
        job_data,
        edit,
        links,
        shared_job,
        data,
        data_file,
        models,
        model,
        playground,
        workers,
        screen,
        settings,
    ),
)


@cache
def all_pages() -> list[Page]:
    return [page for module in _MODULES for page in module.PAGES]
