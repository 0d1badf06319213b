"""Retention of checkpoints by `recipe.save_total_limit` and `keep_every`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .actors import Server
from .callers import event


def save(server: Server, claim: dict[str, Any], number: int, step: int, loss: float) -> None:
    files = server.worker.store(claim, {"adapter_model.safetensors": b"step %d" % step})
    data = {"step": step, "metrics": {"valid_loss": loss}}
    server.worker.report(claim, events=[event(number, kind="checkpoint", data=data, files=files)])


def kept(server: Server, job_id: str) -> list[int]:
    path = f"/v1/fine_tuning/jobs/{job_id}/checkpoints"
    return sorted(one["step_number"] for one in server.user.json(path)["data"])


def test_the_newest_the_best_and_every_so_many_stay_and_the_rest_is_swept(server: Server) -> None:
    recipe = {"save_steps": 10, "save_total_limit": 1, "keep_every": 40}
    job_id = server.create_job(server.good_file(), recipe=recipe)
    claim = server.worker.claim()
    for number, (step, loss) in enumerate(
        [(10, 3.0), (20, 1.0), (30, 2.0), (40, 2.0), (50, 2.0), (50, 2.0), (60, 2.0)], start=1
    ):
        save(server, claim, number, step, loss)
    assert kept(server, job_id) == [20, 40, 60]
    assert server.janitor().sweep(timedelta(0)) == 3
    base = server.user.json("/v1/models", params={"checkpoints": "true"})["data"]
    names = [one["id"] for one in base if "ckpt-step" in one["id"]]
    assert sorted(name.rpartition("-")[2] for name in names) == ["20", "40", "60"]


def test_one_that_another_job_starts_from_stays_until_it_has_ended(server: Server) -> None:
    recipe = {"save_steps": 10, "save_total_limit": 1, "tuning": "full"}
    job_id = server.create_job(server.good_file(), recipe=recipe)
    claim = server.worker.claim()
    save(server, claim, 1, 10, 3.0)
    (checkpoint,) = server.user.json(f"/v1/fine_tuning/jobs/{job_id}/checkpoints")["data"]
    name = checkpoint["fine_tuned_model_checkpoint"]
    other = server.create_job(server.good_file(), model=name)
    save(server, claim, 2, 20, 2.0)
    assert kept(server, job_id) == [10, 20]
    server.ask(other, "cancel")
    save(server, claim, 3, 30, 1.0)
    assert kept(server, job_id) == [30]
