"""The demo's parts: data, model folder, output directory, own data, numbers, summary and plot."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from pydantic import TypeAdapter

import tunesmith
from tunesmith_schema import Grader, JobCreate, MetricPoint
from tunesmith_worker.demo import __main__ as demo_command
from tunesmith_worker.demo import recipes, world
from tunesmith_worker.demo.__main__ import main
from tunesmith_worker.demo.architecture import write_architecture
from tunesmith_worker.demo.files import (
    MARKER,
    DemoError,
    num_held_out,
    prepare_output,
    split_own_data,
)
from tunesmith_worker.demo.measure import compare
from tunesmith_worker.demo.plot import plot_losses, plot_reward
from tunesmith_worker.demo.results import (
    Comparison,
    JobResult,
    Scores,
    Summary,
    exact_match,
    facts_right,
)
from tunesmith_worker.demo.summary import render_page, render_short
from tunesmith_worker.demo.task import invented_task, own_task
from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.rewards import CompletionText, Grading

from ..tiny_model import make_tiny_model


def _text(row: world.Row) -> str:
    return " ".join(message["content"] for message in row["messages"])


def test_the_world_is_the_same_for_the_same_seed() -> None:
    one, other = (world.make_world(7, taught=20, held_out=10) for _ in range(2))
    assert one == other
    assert world.pretraining_data(one) == world.pretraining_data(other)
    assert world.lora_data(one) == world.lora_data(other)
    assert world.grpo_data(one) == world.grpo_data(other)
    assert one != world.make_world(8, taught=20, held_out=10)


def test_lora_never_sees_a_held_out_inhabitant() -> None:
    people = world.make_world(recipes.SEED, taught=72, held_out=56)
    shown = " ".join(_text(row) for row in world.lora_data(people).train)
    assert len({someone.name for someone in (*people.taught, *people.held_out)}) == 128
    for someone in people.held_out:
        assert someone.name not in shown


def test_the_base_model_meets_everybody_but_not_the_questions_it_is_validated_on() -> None:
    people = world.make_world(1, taught=20, held_out=10)
    data = world.pretraining_data(people)
    asked = {row["messages"][0]["content"] for row in data.train}
    for someone in (*people.taught, *people.held_out):
        assert any(someone.name in question for question in asked)
    assert not asked & {row["messages"][0]["content"] for row in data.valid}


def test_the_base_model_is_never_shown_json_for_an_open_question() -> None:
    data = world.pretraining_data(world.make_world(1, taught=20, held_out=10))
    openings = tuple(question.split("{")[0] for question in world.QUESTIONS)
    answers = [
        answer["content"]
        for question, answer in (row["messages"] for row in data.train)
        if question["content"].startswith(openings)
    ]
    assert answers
    assert not any(answer.startswith("{") for answer in answers)


def test_the_architecture_folder_loads_with_stock_transformers(tmp_path: Path) -> None:
    people = world.make_world(1, taught=8, held_out=4)
    folder = tmp_path / "models" / "tiny"
    data = world.pretraining_data(people)
    write_architecture(folder, map(_text, data.train))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config)

    assert 500_000 < sum(weight.numel() for weight in model.parameters()) < 2_000_000
    assert not list(folder.glob("*.safetensors"))
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        config.eos_token_id,
        config.pad_token_id,
    )
    row = data.train[0]
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DemoError, match="--output"):
        prepare_output(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo-output").write_text("")
    with pytest.raises(DemoError, match="is a file"):
        prepare_output(tmp_path / "demo-output")


def test_an_earlier_demo_is_replaced_and_other_files_stay(tmp_path: Path) -> None:
    folder = prepare_output(tmp_path / "out")
    (folder / "adapter").mkdir()
    (folder / "adapter" / "old").write_text("")
    (folder / "summary.md").write_text("old")
    (folder / "notes.txt").write_text("mine")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("")
    (folder / "models").symlink_to(elsewhere)

    assert prepare_output(tmp_path / "out") == folder
    assert sorted(path.name for path in folder.iterdir()) == [MARKER, "notes.txt"]
    assert (elsewhere / "kept").exists()


def test_the_invented_task_makes_all_its_files(tmp_path: Path) -> None:
    task = invented_task(tmp_path)
    assert task.pretrain is not None
    assert task.grpo is not None
    for training in (task.pretrain, task.tune, task.grpo):
        assert len(training.train.read_text().splitlines()) == training.rows
    assert len(task.tune.valid.read_text().splitlines()) >= 50
    assert (task.pretrain.recipe.from_scratch, task.tune.recipe.tuning) == (True, "lora")


def test_the_grader_is_one_and_wants_what_the_questions_know() -> None:
    people = world.make_world(recipes.SEED, taught=8, held_out=4)
    body = {"type": "reinforcement", "reinforcement": {"grader": recipes.GRADER}}
    JobCreate.model_validate(
        {"model": "m", "training_file": "file-1", "method": body, "recipe": recipes.GRPO}
    )
    someone, asked = people.held_out[0], world.grpo_data(people).valid[0]
    prompt = PromptRow(number=1, prompt_ids=(1,), item=json.loads(json.dumps(asked)), text="")
    wrong = someone.record().replace(someone.facts["home"], "moon")
    with Grading(TypeAdapter(Grader).validate_python(recipes.GRADER)) as grading:
        graded = grading.begin([prompt] * 3)
        for place, text in enumerate((someone.record(), wrong, someone.prose())):
            graded.add(place, CompletionText(text, 9, "stop"), [])
        assert [one.rewards[0] for one in graded.finish()] == pytest.approx([1.0, 2 / 3, 0.0])


def test_reinforcement_is_shown_no_answer_and_new_wordings() -> None:
    people = world.make_world(1, taught=20, held_out=10)
    asked = world.grpo_data(people)
    read = {row["messages"][0]["content"] for row in world.pretraining_data(people).train}
    for row in (*asked.train, *asked.valid):
        (message,) = row["messages"]
        assert message["role"] == "user"
        assert message["content"] not in read
    trained = " ".join(row["messages"][0]["content"] for row in asked.train)
    assert not any(someone.name in trained for someone in people.held_out)


@pytest.mark.parametrize(("rows", "held_out"), [(16, 8), (200, 10), (4000, 64)])
def test_a_twentieth_of_the_users_rows_is_held_out_within_bounds(rows: int, held_out: int) -> None:
    assert num_held_out(rows) == held_out


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(DataError, match="15 rows"):
        num_held_out(15)


def test_the_end_of_the_users_file_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    rows = [{"question": f"q{i}", "answer": f"ä{i}"} for i in range(20)]
    source = tmp_path / "rows.json"
    source.write_text(json.dumps(rows))
    task = own_task(tmp_path, str(tmp_path / "model"), source, 50)
    train, valid = (
        file.read_text("utf-8").splitlines() for file in (task.tune.train, task.tune.valid)
    )
    assert (task.tune.rows, len(train), len(valid)) == (12, 12, 8)
    assert [json.loads(line) for line in train + valid] == rows
    assert (task.model, task.model_dir, task.tune.recipe.max_steps) == ("model", tmp_path, 50)


def test_a_bad_row_of_the_users_file_is_named_by_the_users_file(tmp_path: Path) -> None:
    source = tmp_path / "notes.jsonl"
    source.write_text('{"text": "a"}\n' * 20 + "{'text': 'b'}\n")
    with pytest.raises(DataError, match=r"notes\.jsonl, row 21: not valid JSON at column 2"):
        split_own_data(source)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ("./nowhere", "data.jsonl", "no such folder"),
        (".", "data.jsonl", "config.json"),
        ("org/model", "absent.jsonl", "no such file"),
    ],
)
def test_what_the_user_gave_and_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, data: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text('{"text": "x"}\n' * 20)
    with pytest.raises(DemoError, match=message):
        own_task(tmp_path, model, Path(data), None)


def test_an_error_is_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("")
    assert main(["--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_model_without_data_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--model", "org/model"])
    assert "--model and --data must be used together" in capsys.readouterr().err


def test_max_steps_is_for_own_data_and_positive(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--max-steps", "5"], ["--model", "m", "--data", "d", "--max-steps", "0"]):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert "--max-steps must be 1 or more" in capsys.readouterr().err


def test_exact_match_wants_the_form_and_facts_right_does_not() -> None:
    record = '{"animal": "fox", "home": "mill", "food": "nuts"}'
    prose = "Ada is a fox who lives in the mill and likes nuts."
    wrong = "Ada is a fox who lives in the windmill and likes nuts."
    assert exact_match([record, prose], [record, record]) == 0.5
    assert facts_right([record, prose], [record, record]) == 1.0
    assert facts_right([wrong], [record]) == 0.0


def test_the_comparison_is_of_stock_losses_and_greedy_answers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    folder = make_tiny_model(tmp_path / "model", hidden_size=32)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    config = peft.LoraConfig(
        target_modules="all-linear", lora_alpha=64, init_lora_weights=False
    )  # a random adapter that is strong enough to change the answers
    adapted = peft.get_peft_model(model, config)
    adapted.save_pretrained(tmp_path / "adapter")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    turns = [("Who?", "Nobody at all."), ("And where are they all today?", "Here.")]
    rows = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        for question, answer in turns
    ]
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"messages": row}) + "\n" for row in rows)
    )
    compared = compare(str(folder), tmp_path / "adapter", tmp_path / "rows.jsonl", None)

    total, count, answers = 0.0, 0, []
    for row in rows:
        prompt = tokenizer.apply_chat_template(
            row[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        answer = tokenizer(row[1]["content"] + "<|im_end|>", return_tensors="pt")["input_ids"]
        ids = torch.cat([prompt, answer], 1)
        labels = torch.cat([torch.full_like(prompt, -100), answer], 1)
        with torch.no_grad():
            total += float(adapted(input_ids=ids, labels=labels).loss) * answer.shape[1]
            greedy = adapted.generate(prompt, do_sample=False, max_new_tokens=96)
        count += answer.shape[1]
        answers.append(tokenizer.decode(greedy[0, prompt.shape[1] :], skip_special_tokens=True))
    assert compared.tuned.loss == pytest.approx(total / count, rel=1e-5)
    assert compared.tuned.loss != pytest.approx(compared.base.loss, rel=1e-3)
    assert compared.tuned.answers == [answer.strip() for answer in answers]
    assert all(compared.tuned.answers)
    assert compared.tuned.answers != compared.base.answers
    assert list(zip(compared.prompts, compared.expected, strict=True)) == turns
    assert compared.num_rows == 2


def _points(**metrics: Sequence[float | None]) -> list[MetricPoint]:
    """Return one point for each value, from step 1."""
    (length,) = {len(values) for values in metrics.values()}
    return [
        MetricPoint(
            id=str(i), step=i + 1, values={name: values[i] for name, values in metrics.items()}
        )
        for i in range(length)
    ]


def _result(number: int, points: list[MetricPoint]) -> JobResult:
    fields: dict[str, Any] = {  # Any: the other fields of a job are not needed
        "id": f"ftjob-{number}",
        "model": f"ft:tiny:default::{number - 1}",
        "fine_tuned_model": f"ft:tiny:default::{number}",
        "step": 40,
        "trained_tokens": 12345,
    }
    job = tunesmith.Job.model_construct(**fields)
    return JobResult(title=f"Job {number}", rows=216, job=job, points=points)


RECORD = '{"animal": "fox", "home": "mill", "food": "nuts"}'


def _summary(folder: Path) -> Summary:
    prose = "a fox | mill\n`nuts`"
    return Summary(
        output=folder,
        model_dir=None,
        device="cpu",
        seconds=123.4,
        comparison=Comparison(
            prompts=["Who?", "And who?"],
            expected=[RECORD, RECORD],
            base=Scores(loss=0.75, answers=[prose, prose]),
            tuned=Scores(loss=0.05, answers=[RECORD, ""]),
            num_rows=56,
            parameters=918_912,
        ),
        pretrain=_result(1, []),
        tune=_result(2, _points(train_loss=[1.0, 0.01], valid_loss=[0.06, None])),
    )


def test_the_summary_says_the_numbers_and_how_to_start_the_service(tmp_path: Path) -> None:
    text = render_page(_summary(tmp_path))
    assert "| exact match | 0% | 50% |" in text
    assert "| all facts right | 100% | 50% |" in text
    assert "| loss per token | 0.750 | 0.050 |" in text
    assert "The job's last validation loss was 0.06000" in text
    assert "| base model | `a fox \\| mill 'nuts'` |" in text
    assert "| with adapter | (nothing) |" in text
    assert f"tunesmith serve --data-dir '{tmp_path}/service'" in text
    assert "training loss 0.010, validation loss 0.060." in text
    models = replace(_summary(tmp_path), model_dir=tmp_path / "models")
    assert f"TUNESMITH_MODEL_DIRS='{tmp_path}/models' tunesmith serve" in render_page(models)


def test_the_demo_ends_with_the_command_that_opens_the_portal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_command, "run_demo", lambda *_: _summary(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--output", str(tmp_path)]) == 0
    program, verb, *_ = capsys.readouterr().out.splitlines()[-1].split()
    assert (verb, os.access(program, os.X_OK)) == ("serve", True)


def test_the_summary_shows_the_reward(tmp_path: Path) -> None:
    plain = _summary(tmp_path)
    assert "reward" not in render_page(plain).lower()
    rewards = [0.41, 0.8, 0.97, 0.98, 0.99]
    points = _points(reward=rewards, valid_reward=[None, 0.9, None, None, 0.96])
    summary = replace(plain, grpo=_result(3, points))
    for text in (render_page(summary), render_short(summary)):
        assert "| GRPO | first step | last steps | held-out prompts |" in text
        assert "| mean reward | 0.41 | 0.98 | 0.96 |" in text
    text = render_page(summary)
    assert "tunesmith jobs samples ftjob-3\n" in text
    assert "tunesmith jobs report ftjob-3 " in text
    assert "`ftjob-3`): `ft:tiny:default::2` on 216 rows" in text
    assert "; reward 0.990." in text
    assert json.loads(summary.to_json())["rewards"]["held-out prompts"] == 0.96


def test_the_summary_of_own_data_has_losses_only(tmp_path: Path) -> None:
    own = replace(_summary(tmp_path), pretrain=None)
    text = render_page(own)
    assert "exact match" not in text.lower()
    assert "loss per token" in text
    assert json.loads(own.to_json())["figures"] == {"loss per token": [0.75, 0.05]}


def test_the_plot_is_a_png_also_without_validation_points(tmp_path: Path) -> None:
    losses = _result(1, _points(train_loss=[2.0, 1.0], valid_loss=[None, None]))
    plot_losses([losses], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")
    plot_reward(_result(2, _points(reward=[0.5])), tmp_path / "reward.png")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")
