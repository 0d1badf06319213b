"""The demo's parts: data, model folder, output directory, own data, numbers, summary and plot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import transformers
from pydantic import TypeAdapter

from tunesmith_schema import Grader, JobCreate, MetricPoint
from tunesmith_schema import Sample as Drawn
from tunesmith_worker.demo import recipes, world
from tunesmith_worker.demo.__main__ import main
from tunesmith_worker.demo.architecture import write_architecture
from tunesmith_worker.demo.files import (
    MARKER,
    OutputRefused,
    num_held_out,
    prepare_output,
    split_own_data,
)
from tunesmith_worker.demo.plot import Curve, plot_losses, plot_reward
from tunesmith_worker.demo.reward import Answer, RewardSummary, most_varied
from tunesmith_worker.demo.summary import JobSummary, Summary, render_markdown
from tunesmith_worker.demo.summary import Sample as Answers
from tunesmith_worker.demo.task import BadTask, exact_match, facts_right, invented_task, own_task
from tunesmith_worker.rundir.errors import DataError
from tunesmith_worker.trainer.data.prompt_rows import PromptRow
from tunesmith_worker.trainer.rewards import CompletionText, Grading


def _text(row: world.Row) -> str:
    return " ".join(message["content"] for message in row["messages"])


def test_the_world_is_the_same_for_the_same_seed() -> None:
    one, other = (world.make_world(7, taught=20, held_out=10) for _ in range(2))
    assert one == other
    assert world.facts(one, 7) == world.facts(other, 7)
    assert world.style(one, 7) == world.style(other, 7)
    assert one != world.make_world(8, taught=20, held_out=10)


def test_lora_never_sees_a_held_out_inhabitant() -> None:
    people = world.make_world(recipes.SEED, taught=72, held_out=56)
    shown = " ".join(_text(row) for row in world.style(people, 1).train)
    assert len({someone.name for someone in (*people.taught, *people.held_out)}) == 128
    for someone in people.held_out:
        assert someone.name not in shown


def test_the_base_model_meets_everybody_but_not_the_questions_it_is_validated_on() -> None:
    people = world.make_world(1, taught=20, held_out=10)
    data = world.facts(people, 1)
    asked = {row["messages"][0]["content"] for row in data.train}
    for someone in (*people.taught, *people.held_out):
        assert any(someone.name in question for question in asked)
    assert not asked & {row["messages"][0]["content"] for row in data.valid}


def test_the_base_model_is_never_shown_json_for_an_open_question() -> None:
    data = world.facts(world.make_world(1, taught=20, held_out=10), 1)
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
    write_architecture(folder, world.texts(world.facts(people, 1)))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(config)

    assert 500_000 < sum(weight.numel() for weight in model.parameters()) < 2_000_000
    assert not list(folder.glob("*.safetensors"))
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (
        config.eos_token_id,
        config.pad_token_id,
    )
    row = world.facts(people, 1).train[0]
    text = tokenizer.apply_chat_template(row["messages"], tokenize=False)
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputRefused, match="--output"):
        prepare_output(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "demo-output").write_text("")
    with pytest.raises(OutputRefused, match="is a file"):
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
    task = invented_task(tmp_path, max_steps=None)
    assert task.pretraining is not None
    assert task.reinforcement is not None
    for training in (task.pretraining, task.tuning, task.reinforcement):
        assert len(training.train.read_text().splitlines()) == training.rows
    assert len(task.tuning.valid.read_text().splitlines()) >= 50
    assert (task.pretraining.recipe.from_scratch, task.tuning.recipe.tuning) == (True, "lora")


def test_the_grader_is_one_and_wants_what_the_questions_know() -> None:
    people = world.make_world(recipes.SEED, taught=8, held_out=4)
    body = {"type": "reinforcement", "reinforcement": {"grader": recipes.GRADER}}
    JobCreate.model_validate(
        {"model": "m", "training_file": "file-1", "method": body, "recipe": recipes.GRPO}
    )
    someone, asked = people.held_out[0], world.questions(people, 1).valid[0]
    prompt = PromptRow(number=1, prompt_ids=(1,), item=json.loads(json.dumps(asked)), text="")
    wrong = someone.record().replace(someone.home, "moon")
    with Grading(TypeAdapter(Grader).validate_python(recipes.GRADER)) as grading:
        graded = grading.begin([prompt] * 3)
        for place, text in enumerate((someone.record(), wrong, someone.prose())):
            graded.add(place, CompletionText(text, 9, "stop"), [])
        assert [one.rewards[0] for one in graded.finish()] == pytest.approx([1.0, 2 / 3, 0.0])


def test_reinforcement_is_shown_no_answer_and_new_wordings() -> None:
    people = world.make_world(1, taught=20, held_out=10)
    asked = world.questions(people, 1)
    read = {row["messages"][0]["content"] for row in world.facts(people, 1).train}
    for row in (*asked.train, *asked.valid):
        (message,) = row["messages"]
        assert message["role"] == "user"
        assert message["content"] not in read
    trained = " ".join(row["messages"][0]["content"] for row in asked.train)
    assert not any(someone.name in trained for someone in people.held_out)


def test_max_steps_shortens_a_recipe_and_its_parts() -> None:
    short = recipes.at_most(recipes.PRETRAIN, 20)
    assert (short.max_steps, short.warmup_steps, short.eval_steps) == (20, 2, 2)
    assert recipes.at_most(recipes.PRETRAIN, 10_000).max_steps == recipes.PRETRAIN.max_steps
    assert recipes.at_most(recipes.OWN_MODEL, None) == recipes.OWN_MODEL


@pytest.mark.parametrize(("rows", "held_out"), [(16, 8), (200, 10), (4000, 64)])
def test_a_twentieth_of_the_users_rows_is_held_out_within_bounds(rows: int, held_out: int) -> None:
    assert num_held_out(rows) == held_out


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(DataError, match="15 rows"):
        num_held_out(15)


def test_the_end_of_the_users_file_is_held_out(tmp_path: Path) -> None:
    rows = [{"question": f"q{i}", "answer": f"ä{i}"} for i in range(20)]
    source, train, valid = (tmp_path / name for name in ("s.json", "t.jsonl", "v.jsonl"))
    source.write_text(json.dumps(rows))
    assert split_own_data(source, train, valid) == (12, 8)
    lines = train.read_text("utf-8").splitlines() + valid.read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows


def test_a_bad_row_of_the_users_file_is_named_by_the_users_file(tmp_path: Path) -> None:
    source = tmp_path / "notes.jsonl"
    source.write_text('{"text": "a"}\n' * 20 + "{'text': 'b'}\n")
    with pytest.raises(DataError, match=r"notes\.jsonl, row 21: not valid JSON at column 2"):
        split_own_data(source, tmp_path / "t.jsonl", tmp_path / "v.jsonl")


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
    with pytest.raises(BadTask, match=message):
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
    assert "--model and --data go together" in capsys.readouterr().err


def test_exact_match_wants_the_form_and_facts_right_does_not() -> None:
    record = '{"animal": "fox", "home": "mill", "food": "nuts"}'
    prose = "Ada is a fox who lives in the mill and likes nuts."
    wrong = "Ada is a fox who lives in the windmill and likes nuts."
    assert exact_match([record, prose], [record, record]) == 0.5
    assert facts_right([record, prose], [record, record]) == 1.0
    assert facts_right([wrong], [record]) == 0.0


def _summary(folder: Path) -> Summary:
    job = JobSummary(
        id="ftjob-1",
        title="LoRA on the new base model",
        model="ft:tiny:default::1",
        fine_tuned_model="ft:tiny:default::2",
        rows=216,
        steps=40,
        trained_tokens=12345,
        train_loss=0.01,
        valid_loss=None,
        seconds={"train": 12.0},
    )
    return Summary(
        base_model=job.model,
        parameters=918_912,
        device="cpu",
        held_out_rows=56,
        base_loss=0.75,
        tuned_loss=0.05,
        base_exact_match=0.0,
        tuned_exact_match=0.98,
        base_facts_right=1.0,
        tuned_facts_right=0.98,
        seconds_total=123.4,
        seconds={"lora": 20.0},
        jobs=(job,),
        reward=None,
        samples=(Answers(prompt="Who?", expected="{}", base="a | b\n`c`", tuned=""),),
        output_path=str(folder),
        adapter_path=str(folder / "adapter"),
        model_dir=None,
    )


def test_the_summary_says_the_numbers_and_how_to_do_it_oneself(tmp_path: Path) -> None:
    text = render_markdown(_summary(tmp_path))
    assert "| exact match | 0% | 98% |" in text
    assert "| loss per token | 0.750 | 0.050 |" in text
    assert "| base model | `a \\| b 'c'` |" in text
    assert "| with adapter | (nothing) |" in text
    for call in ("Client()", "jobs.create(", "job.wait(", "adapters.download("):
        assert call in text


def test_the_summary_shows_the_reward_and_a_group(tmp_path: Path) -> None:
    plain = _summary(tmp_path)
    assert "reward" not in render_markdown(plain).lower()
    reward = RewardSummary(
        job_id="ftjob-2",
        before=0.41,
        after=0.98,
        held_out=0.97,
        json_share=0.9,
        step=1,
        question="Who, please?",
        answers=(
            Answer(text='{"animal": "fox"}', reward=1 / 3, advantage=0.5),
            Answer(text="A fox.", reward=None, advantage=None),
        ),
    )
    jobs = (*plain.jobs, replace(plain.jobs[0], id="ftjob-2", train_loss=None))
    text = render_markdown(replace(plain, jobs=jobs, reward=reward))
    assert "| training prompts | 0.41 | 0.98 |" in text
    assert "| held-out prompts |  | 0.97 |" in text
    assert "answered\n90% of them in JSON, not always" in text
    assert '| `{"animal": "fox"}` | 0.33 | +0.50 |' in text
    assert "| `A fox.` | none | none |" in text
    assert "| prompt `Who, please?` | reward | advantage |" in text
    assert "tunesmith jobs samples ftjob-2\ntunesmith jobs report ftjob-2" in text
    assert "`ftjob-2`): `ft:tiny:default::1` on 216 rows" in text
    assert "; reward 0.980." in text


def test_the_group_shown_is_the_one_with_the_widest_rewards() -> None:
    def drawn(group: int, reward: float | None) -> Drawn:
        return Drawn(
            id="s", created_at=0, step=1, group=group, row=1, prompt="p", completion="c",
            reward=reward, prompt_tokens=1, completion_tokens=1, finish_reason="stop",
        )  # fmt: skip

    pairs = [(2, 1.0), (1, 0.0), (0, None), (2, 1.0), (1, 1.0), (0, 0.5)]
    group = most_varied([drawn(*pair) for pair in pairs])
    assert [one.reward for one in group] == [0.0, 1.0]
    assert {one.group for one in group} == {1}


def test_the_summary_of_own_data_has_losses_only(tmp_path: Path) -> None:
    own = replace(
        _summary(tmp_path),
        base_exact_match=None,
        tuned_exact_match=None,
        base_facts_right=None,
        tuned_facts_right=None,
    )
    text = render_markdown(own)
    assert "exact match" not in text.lower()
    assert "loss per token" in text
    assert json.loads(own.to_json())["tuned_exact_match"] is None


def test_the_plot_is_a_png_also_without_validation_points(tmp_path: Path) -> None:
    points = [
        MetricPoint(id="1", step=1, values={"train_loss": 2.0, "valid_loss": None}),
        MetricPoint(id="2", step=2, values={"train_loss": 1.0}),
    ]
    plot_losses([Curve(title="one", points=points)], tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG\r\n")
    rewards = [MetricPoint(id="3", step=1, values={"reward": 0.5})]
    plot_reward(Curve(title="two", points=rewards), tmp_path / "reward.png")
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG\r\n")
