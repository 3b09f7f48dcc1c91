"""Task files: what they include, and what is code in them."""

import importlib.machinery

import pytest

from understudy.errors import InputError
from understudy.evaluation.answers import task_files
from understudy.evaluation.answers.task_files import files_of, refuse_code

PLAIN = "task: own\ndoc_to_text: '{{q}}'\nmetric_list: [{metric: acc}]\n"


def written(folder, **files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(content)
    return str(folder / f"{next(iter(files))}.yaml")


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("process_docs: !function utils.process", "!function utils.process"),
        ("metric_list: [{metric: acc, aggregation: !function statistics.mean}]", "!function statistics.mean"),
        ("task: [{task: inner, doc_to_text: !function utils.text}]", "!function utils.text"),
        ("class: !function utils.Task", "!function utils.Task"),
        ("class: utils.Task", "class: utils.Task"),
        ("use_prompt: promptsource:all", "use_prompt"),
        ("unsafe_code: true", "unsafe_code"),
        ("doc_to_text: !!python/name:os.system", "python/name:os.system"),
        ("kept: &kept {a: !function utils.deep}\nother: *kept", "!function utils.deep"),
    ],
)
def test_code_is_refused_with_its_file_and_line_and_wherever_it_is_included(code, named, tmp_path):
    alone = written(tmp_path, alone=PLAIN + code)
    including = written(tmp_path, outer="include: inner/first.yaml\ntask: outer")
    written(tmp_path / "inner", first="include:\n- second.yaml", second=PLAIN + code)
    merging = written(tmp_path, merging=f"<<: {{include: {tmp_path}/alone.yaml}}\ntask: merging")
    for task, file in ((alone, "alone.yaml"), (including, "inner/second.yaml"), (merging, "alone.yaml")):
        with pytest.raises(InputError, match=r"line [45]; ") as refused:
            refuse_code(task)
        assert named in str(refused.value)
        assert str(tmp_path / file) in str(refused.value)


def test_a_file_without_code_passes_and_so_do_names_of_tasks(tmp_path):
    task = written(tmp_path, outer="include: [plain.yaml, absent.yaml]\ntask: outer", plain=PLAIN)
    refuse_code(task)
    refuse_code("arc_easy")
    assert [path.name for path in files_of(task)] == ["outer.yaml", "plain.yaml"]
    assert files_of("arc_easy") == []


def test_files_that_include_each_other_and_themselves_are_read_once(tmp_path):
    task = written(tmp_path, one="include: two.yaml", two="include: one.yaml\nown: &own [*own]")
    refuse_code(task)
    assert len(files_of(task)) == 2


def test_what_comes_with_the_harness_may_have_code_and_what_only_looks_like_it_may_not(tmp_path, monkeypatch):
    package = tmp_path / "site/lm_eval"
    own = written(package / "tasks/arc", arc="process_docs: !function utils.process")
    spec = importlib.machinery.ModuleSpec("lm_eval", None, is_package=True)
    spec.submodule_search_locations.append(str(package))
    monkeypatch.setattr(task_files, "find_spec", lambda _: spec)
    refuse_code(own)
    refuse_code(written(tmp_path, mine=f"include: {own}\ntask: mine"))
    for beside in (tmp_path / "elsewhere/lm_eval/tasks", package / "tasks-of-mine"):
        with pytest.raises(InputError, match="!function"):
            refuse_code(written(beside, arc="process_docs: !function utils.process"))


def test_a_file_that_is_no_yaml_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected YAML in .*own\.yaml"):
        refuse_code(written(tmp_path, own="task: [unclosed"))
