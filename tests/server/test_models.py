"""Models: base models of jobs, and names of tuned models."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tunesmith_server.__main__ import main
from tunesmith_server.core.settings import Settings

from .actors import Server
from .callers import event


def tuned(server: Server, kind: str = "lora", **body: object) -> str:
    """Name of a freshly tuned model."""
    recipe = {"tuning": kind}
    job_id = server.create_job(server.good_file(), recipe=recipe, **body)
    server.worker.succeed(server.worker.claim(), kind=kind)
    return str(server.job(job_id)["fine_tuned_model"])


def test_base_and_tuned_models_are_listed(server: Server) -> None:
    name = tuned(server)
    models = {model["id"]: model for model in server.user.json("/v1/models")["data"]}
    assert set(models) == {"tiny-llama", name}
    assert models["tiny-llama"]["owned_by"] == "base"
    assert models[name]["owned_by"] == "tunesmith"
    assert models[name]["base_model"] == "tiny-llama"
    assert server.user.json(f"/v1/models/{name}") == models[name]


def test_checkpoints_are_listed_on_request_and_their_names_work(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    files = server.worker.store(claim, {"a.safetensors": b"x"})
    saved = event(1, kind="checkpoint", data={"step": 2}, files=files)
    server.worker.report(claim, events=[saved])
    server.worker.succeed(claim)
    name = server.job(job_id)["fine_tuned_model"]
    checkpoint = f"{name}:ckpt-step-2"

    def listed(**params: str) -> list[str]:
        return [model["id"] for model in server.user.json("/v1/models", params=params)["data"]]

    assert listed() == ["tiny-llama", name]
    assert listed(checkpoints="true") == ["tiny-llama", name, checkpoint]
    assert listed(checkpoints="true", after=name) == [checkpoint]
    assert server.user.json(f"/v1/models/{checkpoint}")["base_model"] == "tiny-llama"


def test_models_are_filtered_by_base_kind_and_text(server: Server) -> None:
    lora, full = tuned(server, suffix="One_a"), tuned(server, "full", suffix="two")
    further = tuned(server, "full", model=full)

    def listed(**params: str) -> list[str]:
        return [model["id"] for model in server.user.json("/v1/models", params=params)["data"]]

    assert listed(base="tiny-llama") == [full, lora]
    assert listed(base=full) == [further]
    assert listed(kind="base") == ["tiny-llama"]
    assert listed(kind="lora") == [lora]
    assert listed(kind="tuned") == [further, full, lora]
    assert listed(kind="full", limit="1") == [further]
    assert listed(kind="full", after=further) == [full]
    assert listed(text="ONE_A") == [lora]
    assert listed(text="one%") == []
    assert listed(text="tiny-llama:") == [further, full, lora]
    assert listed(text="TINY", kind="base") == ["tiny-llama"]
    assert server.user.get("/v1/models", params={"kind": "other"}).status_code == 400


def test_a_model_has_its_size_context_workers_and_serving(
    server: Server, settings: Settings
) -> None:
    folder = Path(settings.model_dirs) / "tiny-llama"
    name = tuned(server)
    base = server.user.json("/v1/models/tiny-llama")
    assert (base["kind"], base["bytes"], base["context_length"]) == ("base", None, None)
    assert base["workers"] == [server.worker.name]
    (folder / "model.safetensors").write_bytes(b"1" * 300)
    (folder / "config.json").write_text('{"text_config": {"max_position_embeddings": 2048}}')
    base = server.user.json("/v1/models/tiny-llama")
    assert (base["bytes"], base["context_length"]) == (300, 2048)
    found = server.user.json(f"/v1/models/{name}")
    adapter = server.user.json(f"/v1/adapters/{found['adapter_id']}")
    assert (found["kind"], found["context_length"], found["workers"]) == ("lora", 2048, None)
    assert all(found[key] == adapter[key] for key in ("bytes", "step", "job_id", "base_model"))
    assert found["serving"] == "off"
    settings.inference_url = "http://127.0.0.1:1/v1"
    assert server.user.json(f"/v1/models/{name}")["serving"] == "on_demand"


@pytest.mark.parametrize("config", ["", "[]", '{"max_position_embeddings": "2"}', "{" * 99999])
def test_a_damaged_configuration_has_no_context_length(
    server: Server, settings: Settings, config: str
) -> None:
    (Path(settings.model_dirs) / "tiny-llama" / "config.json").write_text(config)
    assert server.user.json("/v1/models/tiny-llama")["context_length"] is None


def test_jobs_and_evaluations_that_use_a_model_are_listed(server: Server) -> None:
    name = tuned(server, "full")
    file_id = server.good_file()
    job_id = server.create_job(file_id, model=name, suffix="again")
    asked = [{"model": name, "file": file_id}, {"model": "tiny-llama", "against": name}]
    evaluations = [
        server.user.post("/v1/evaluations", json={"file": file_id, **body}).json()["id"]
        for body in asked
    ]
    uses = server.user.json(f"/v1/models/{name}/uses")["data"]
    assert [(use["id"], use["role"], use["model"]) for use in uses] == [
        (evaluations[1], "against", "tiny-llama"),
        (evaluations[0], "model", name),
        (job_id, "base_model", name),
    ]
    assert [use["name"] for use in uses] == [None, None, "again"]
    params = {"after": evaluations[0]}
    rest = server.user.json(f"/v1/models/{name}/uses", params=params)["data"]
    assert [use["id"] for use in rest] == [job_id]
    assert len(server.user.json("/v1/models/tiny-llama/uses")["data"]) == 3
    assert server.user.get("/v1/models/nobody/uses").status_code == 404


def test_a_checkpoint_is_deleted_alone(server: Server) -> None:
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    for number, step in enumerate((2, 4), start=1):
        files = server.worker.store(claim, {"a.safetensors": b"step %d" % step})
        saved = event(number, kind="checkpoint", data={"step": step}, files=files)
        server.worker.report(claim, events=[saved])
    server.worker.succeed(claim)
    name = server.job(job_id)["fine_tuned_model"]
    assert server.user.delete(f"/v1/models/{name}:ckpt-step-2").status_code == 200
    [left] = server.user.json(f"/v1/fine_tuning/jobs/{job_id}/checkpoints")["data"]
    assert left["step_number"] == 4
    listed = server.user.json("/v1/models", params={"checkpoints": "true", "base": "tiny-llama"})
    assert [model["id"] for model in listed["data"]] == [name, f"{name}:ckpt-step-4"]
    assert server.janitor().sweep(timedelta(0)) == 1


def test_a_tuned_name_has_five_parts_without_slashes(server: Server) -> None:
    job_id = server.create_job(server.good_file(), model="org/Some.Model-1", suffix="mine.v2")
    server.worker.succeed(server.worker.claim())
    name = server.job(job_id)["fine_tuned_model"]
    assert name == f"ft:Some.Model-1:default:mine.v2:{job_id.removeprefix('ftjob-')[:10]}"


def test_a_very_long_base_name_still_gives_a_name(server: Server) -> None:
    name = tuned(server, model=f"org/{'x' * 500}")
    assert len(name) <= 255
    assert server.user.get(f"/v1/models/{name}").status_code == 200


def test_full_weights_can_be_trained_further(server: Server) -> None:
    name = tuned(server, "full")
    job_id = server.create_job(server.good_file(), model=name, suffix="again")
    claim = server.worker.claim()
    assert (claim["job_id"], claim["model"]) == (job_id, name)
    assert [file["name"] for file in claim["base_files"]]
    path = f"/internal/jobs/{job_id}/base/adapter_model.safetensors"
    reply = server.worker.get(path, params={"fence": claim["fence"]})
    assert reply.content == bytes(range(256)) * 5
    assert server.worker.get(path, params={"fence": 99}).status_code == 409
    server.worker.succeed(claim, kind="full")
    assert server.job(job_id)["fine_tuned_model"].startswith("ft:tiny-llama:default:again:")


def test_a_lora_adapter_is_no_base_model(server: Server) -> None:
    name = tuned(server)
    error = server.create_reply(server.good_file(), model=name).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_usable", "model")
    assert "tiny-llama" in error["hint"]


def test_a_model_that_is_a_base_cannot_be_deleted(server: Server) -> None:
    name = tuned(server, "full")
    job_id = server.create_job(server.good_file(), model=name)
    assert server.user.delete(f"/v1/models/{name}").status_code == 400
    server.user.post(f"/v1/fine_tuning/jobs/{job_id}/cancel")
    assert server.user.delete(f"/v1/models/{name}").json() == {
        "id": name, "object": "model", "deleted": True,
    }  # fmt: skip


def test_a_deleted_model_is_gone_and_its_job_remains(server: Server) -> None:
    name = tuned(server)
    [job] = server.user.json("/v1/fine_tuning/jobs")["data"]
    assert server.user.delete(f"/v1/models/{name}").status_code == 200
    assert server.user.get(f"/v1/models/{name}").status_code == 404
    assert server.user.get(f"/v1/adapters/{job['adapter_id']}").status_code == 404
    assert server.job(job["id"])["status"] == "succeeded"
    assert server.user.delete(f"/v1/models/{name}").status_code == 404


def test_a_base_model_is_the_operators(server: Server) -> None:
    assert server.user.delete("/v1/models/tiny-llama").status_code == 404


def test_a_folder_below_an_allowed_directory_may_be_named(server: Server, tmp_path: Path) -> None:
    job_id = server.create_job(server.good_file(), model=str(tmp_path / "models" / "tiny-llama"))
    assert server.job(job_id)["model"] == "tiny-llama"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Model folder beside the allowed directory, with a link to it inside."""
    folder = tmp_path / "models_evil" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (tmp_path / "models" / "config.json").write_text("{}")
    (tmp_path / "models" / "nested").mkdir()
    (tmp_path / "models" / "nested" / "link").symlink_to(folder)
    return folder


def test_no_other_path_may_be_named(server: Server, tmp_path: Path, outside: Path) -> None:
    models = tmp_path / "models"
    for path in (
        str(outside),
        f"{models}/../models_evil/model",
        f"{models}/nested/link",
        str(models),
        f"{models}/",
        f"{models}/none",
        f"{models}/{'x' * 400}",
        f"{models}/tiny-llama\x7f",
        "/etc",
        "/",
        "../models_evil/model",
        "./x",
        "~/model",
        "~nosuchuser/model",
        "~",
    ):
        reply = server.create_reply(server.good_file(), model=path)
        assert reply.status_code == 400, (path, reply.text)
        assert reply.json()["error"]["code"] == "model_not_found", path
        assert reply.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    "name",
    ["org/name\n", "org/../name", "org//name", "a/b/c", "org/", ".hidden/x", "org/.git", "x y"],
)
def test_what_is_no_hub_id_is_refused(server: Server, name: str) -> None:
    assert server.create_reply(server.good_file(), model=name).status_code == 400


def test_a_mistyped_model_gets_the_right_one_offered(server: Server) -> None:
    error = server.create_reply(server.good_file(), model="tiny-lama").json()["error"]
    assert error["hint"] == "did you mean 'tiny-llama'?"


def test_an_unknown_tuned_model_is_refused(server: Server) -> None:
    error = server.create_reply(server.good_file(), model="ft:a:b::c").json()["error"]
    assert error["code"] == "model_not_found"


def test_a_suffix_may_be_any_text_and_the_name_stays_plain(server: Server) -> None:
    server.create_job(server.good_file(), suffix="My run: take 2/3")
    claim = server.worker.claim()
    server.worker.succeed(claim)
    job = server.job(claim["job_id"])
    assert job["suffix"] == "My run: take 2/3"
    assert job["fine_tuned_model"].startswith("ft:tiny-llama:default:My-run-take-2-3:")


def test_a_job_that_no_worker_can_serve_says_so(server: Server) -> None:
    reply = server.create_reply(server.good_file())
    assert "no training worker has the base model 'tiny-llama'" in str(
        server.messages(reply.json()["id"])
    )
    assert "no training worker" not in str(server.messages(server.create_job(server.good_file())))


@pytest.mark.parametrize("verb", ["serve", "api"])
def test_a_missing_model_folder_draws_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The cause is a path relative to another directory."""
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TUNESMITH_MODEL_DIRS", "models:demo/models")
    monkeypatch.setenv("TUNESMITH_BROKER_URL", "memory://")
    monkeypatch.setenv("TUNESMITH_STORAGE_URL", "nowhere://")  # the start fails here
    assert main([verb, "--data-dir", str(tmp_path / "data"), "--port", "0"]) == 1
    [line] = [line for line in caplog.messages if "MODEL_DIRS" in line]
    assert line.startswith(f"TUNESMITH_MODEL_DIRS names {tmp_path}/demo/models, which is missing")


@pytest.mark.parametrize(
    ("model_dirs", "said"),
    [
        ("", "TUNESMITH_MODEL_DIRS is not set"),
        ("{tmp}/none:{tmp}", "{tmp}/none is missing, {tmp} has none"),
    ],
)
def test_an_unknown_model_is_told_where_it_was_looked_for(
    server: Server, settings: Settings, tmp_path: Path, model_dirs: str, said: str
) -> None:
    settings.model_dirs = model_dirs.format(tmp=tmp_path)
    error = server.create_reply(server.good_file(), model="tiny").json()["error"]
    assert said.format(tmp=tmp_path) in error["hint"]
    assert "set TUNESMITH" not in error["hint"]


def test_a_model_s_tokenizer_is_its_own_or_its_base_model_s(
    server: Server, settings: Settings
) -> None:
    folder = Path(settings.model_dirs) / "tiny-llama"
    missing = server.user.get("/v1/models/tiny-llama/tokenizer")
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "model")
    (folder / "tokenizer.json").write_text('{"of": "base"}')
    (folder / "model.safetensors").write_text("weights")
    name = tuned(server)
    for model in ("tiny-llama", name):
        found = server.user.json(f"/v1/models/{model}/tokenizer")
        assert found["model"] == model
        assert found["files"] == {"tokenizer.json": '{"of": "base"}', "config.json": "{}"}
    job_id = server.create_job(server.good_file())
    claim = server.worker.claim()
    files = server.worker.store(claim, {"tokenizer.json": b'{"of": "adapter"}', "a.bin": b"x"})
    outcome = {"state": "succeeded", "kind": "lora", "step": 1, "trained_tokens": 1, "files": files}
    server.worker.report(claim, outcome=outcome)
    added = server.job(job_id)["fine_tuned_model"]
    found = server.user.json(f"/v1/models/{added}/tokenizer")
    assert found["files"] == {"tokenizer.json": '{"of": "adapter"}'}
    assert server.user.get("/v1/models/nobody/tokenizer").status_code == 404
