"""`client.fine_tuning.checkpoints.permissions`: projects that may use a tuned model."""

from __future__ import annotations

from collections.abc import Sequence

import tunesmith_schema as wire
from tunesmith._http.connection import Http, Params, path_of
from tunesmith._http.pages import Page, first_page
from tunesmith_schema import CheckpointPermission, Deleted


class Permissions:
    """Permissions of other projects to use a tuned model or checkpoint."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def create(self, model: str, *, project_ids: Sequence[str]) -> Page[CheckpointPermission]:
        """Share a tuned model of this project with other projects."""
        body = {"project_ids": [*project_ids]}
        return first_page(
            lambda _: self._http.post(wire.Page[CheckpointPermission], _path(model), json=body),
            None,
        )

    def list(
        self, model: str, *, project_id: str | None = None, limit: int | None = None
    ) -> Page[CheckpointPermission]:
        def fetch(after: str | None) -> wire.Page[CheckpointPermission]:
            params: Params = {"limit": limit, "after": after, "project_id": project_id}
            return self._http.get(wire.Page[CheckpointPermission], _path(model), params)

        return first_page(fetch, None)

    def delete(self, permission_id: str, *, model: str) -> Deleted:
        """Withdraw a permission immediately."""
        return self._http.delete(Deleted, f"{_path(model)}/{path_of(permission_id)}")


def _path(model: str) -> str:
    return path_of("fine_tuning", "checkpoints", model, "permissions")


class Checkpoints:
    """`client.fine_tuning.checkpoints`."""

    def __init__(self, http: Http) -> None:
        self.permissions = Permissions(http)
