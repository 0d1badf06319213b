"""`client.adapters`: trained adapters. A download that fails changes no files."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from pydantic import ValidationError

import tunesmith_schema as wire
from tunesmith._http.connection import Http, path_of
from tunesmith._http.errors import DownloadError
from tunesmith._http.pages import Page, first_page
from tunesmith._transfer.download import fetch, file_sha256
from tunesmith_schema import Adapter
from tunesmith_schema.documents import read_file
from tunesmith_schema.verification import VERIFICATION_FILE, Verification

from .files import Order


class Adapters:
    """Trained adapters, or whole models after full fine-tuning."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def list(
        self, *, after: str | None = None, limit: int | None = None, order: Order | None = None
    ) -> Page[Adapter]:
        """List the trained weights of all jobs (results and checkpoints) with their files, newest
        first."""

        def fetch(cursor: str | None) -> wire.Page[Adapter]:
            params = {"after": cursor, "limit": limit, "order": order}
            return self._http.get(wire.Page[Adapter], "adapters", params)

        return first_page(fetch, after)

    def verification(self, adapter_id: str) -> Verification:
        """Return the result of the trainer's check: the stored files must give the same logits as
        the trained model. Raises NotFoundError for weights that were not verified, such as the
        weights of a checkpoint."""
        return self._http.get(Verification, path_of("adapters", adapter_id, "verification"))

    def retrieve(self, adapter_id: str) -> Adapter:
        return self._http.get(Adapter, path_of("adapters", adapter_id))

    def download(self, id_or_job_id: str, dir: str | os.PathLike[str]) -> Path:
        """Download an adapter into `dir`, by its id (`adp-...`) or by the job's id (`ftjob-...`).

        Every file is verified by sha256. If the trainer verified the adapter, every file must also
        match verification.json. After an error, `dir` is unchanged. If `dir` already has the
        adapter's files, nothing is downloaded.
        """
        target = Path(dir)
        adapter = self.retrieve(self._adapter_id(id_or_job_id))
        if _exists(target):
            if _has_files(target, adapter):
                return target
            raise DownloadError(
                f"{target} exists and is not a copy of {adapter.id}",
                hint="pass a new or empty directory, or delete this one",
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
        partial.mkdir()
        try:
            for file in adapter.files:
                fetch(
                    self._http,
                    path_of("adapters", adapter.id, "content", file.name),
                    name=file.name,
                    size=file.bytes,
                    sha256=file.sha256,
                    to=partial / file.name,
                )
            _check_verification(partial, adapter)
            _fsync(partial)
            partial.rename(target)
            _fsync(target.parent)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return target

    def _adapter_id(self, id_or_job_id: str) -> str:
        if not id_or_job_id.startswith("ftjob-"):
            return id_or_job_id
        job = self._http.get(wire.Job, path_of("fine_tuning", "jobs", id_or_job_id))
        if job.adapter_id is None:
            raise DownloadError(
                f"job {job.id} is {job.state} and has no adapter",
                hint="the job ended without a result"
                if job.state in wire.TERMINAL
                else f"wait for the job: client.fine_tuning.jobs.wait('{job.id}')",
            )
        return job.adapter_id


def _exists(target: Path) -> bool:
    return target.exists() and (not target.is_dir() or any(target.iterdir()))


def _has_files(target: Path, adapter: Adapter) -> bool:
    return target.is_dir() and all(
        (path := target / file.name).is_file()
        and path.stat().st_size == file.bytes
        and file_sha256(path) == file.sha256
        for file in adapter.files
    )


def _check_verification(folder: Path, adapter: Adapter) -> None:
    """Compare the downloaded files with verification.json, which lists the files that the trainer
    verified."""
    path = folder / VERIFICATION_FILE
    if not path.exists():
        return
    hint = "the server's files are not those of the trainer: do not use them, and report this"
    try:
        verified = read_file(Verification, path.read_bytes()).files
    except ValidationError as error:
        raise DownloadError(
            f"{VERIFICATION_FILE} of {adapter.id} has {error.error_count()} wrong fields",
            hint=hint,
        ) from error
    stored = {file.name: file for file in adapter.files if file.name != VERIFICATION_FILE}
    for name in sorted(stored.keys() | verified.keys()):
        if name not in verified or name not in stored:
            where = "in the download" if name in stored else f"in {VERIFICATION_FILE}"
            raise DownloadError(f"{name} of {adapter.id} is only {where}", hint=hint)
        if stored[name].sha256 != verified[name].sha256:
            raise DownloadError(
                f"{name} of {adapter.id} has the sha256 {stored[name].sha256}, but the trainer "
                f"verified {verified[name].sha256}",
                hint=hint,
            )


def _fsync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
