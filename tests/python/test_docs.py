# SPDX-License-Identifier: Apache-2.0
"""What README.md and docs/ show runs as it stands, and prints what stands below it; the examples run."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"


def _blocks_module():
    spec = importlib.util.spec_from_file_location("blocks_of_docs", REPOSITORY / "docs" / "blocks.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)
    spec.loader.exec_module(module)
    return module


docs = _blocks_module()
PAGES = docs.pages()
NAMES = [str(page.relative_to(REPOSITORY)) for page in PAGES]


def there(needs):
    """Skips what cannot run here; what needs a GPU is in tests/gpu."""
    if needs == "torch":
        pytest.importorskip("torch")
    elif needs:
        pytest.skip(f"needs {needs}")


def programs(needed):
    found = [(page, code) for page in PAGES for code in docs.blocks(page, "python")]
    return [
        pytest.param(page, code, id=f"{page.relative_to(REPOSITORY)}-{docs.title(code)}")
        for page, code in found
        if (docs.needs_of(code) == "a GPU") == needed
    ]


@pytest.mark.parametrize(("page", "code"), programs(needed=False))
def test_a_program_runs(page, code, tmp_path):
    there(docs.needs_of(code))
    docs.prepare(page, tmp_path)
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    arguments = ["128"] if "sys.argv[1]" in code else []
    finished = docs.run([sys.executable, "example.py", *arguments], tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""


@pytest.mark.parametrize("page", [page for page in PAGES if docs.blocks(page, "console")], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run_and_print_what_is_shown(page, tmp_path):
    docs.prepare(page, tmp_path)
    for command in [command for block in docs.blocks(page, "console") for command in docs.commands(block)]:
        if command.needs == "a GPU" or (command.needs == "torch" and importlib.util.find_spec("torch") is None):
            continue
        finished = docs.run_command(command, tmp_path)
        assert finished.returncode == 0, f"{command.line}\n{finished.stderr}"
        if command.output:
            assert docs.shown(finished) == command.output, "python docs/blocks.py writes the outputs again"


def test_a_block_says_what_it_needs():
    assert docs.needs_of("# needs a GPU\nimport gpuscope\n") == "a GPU"
    assert docs.needs_of("import gpuscope  # needs nothing\n") == ""
    assert [
        command.needs for command in docs.commands("$ gpuscope run x.py  # needs a GPU\nmany\n\nlines\n$ ls\n")
    ] == [
        "a GPU",
        "",
    ]
    assert [command.output for command in docs.commands("$ a\nmany\n\nlines\n$ ls\n")] == ["many\n\nlines", ""]


def test_two_commands_set_everything_up():
    commands = [line for block in docs.blocks(README, "sh") for line in block.splitlines()]
    assert len(commands) == 2
    assert "pip install . && .venv/bin/gpuscope demo" in commands[0]
    assert "pip install '.[test]' && .venv/bin/pytest -n auto" in commands[1]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("code", docs.blocks(README, "sh"))
def test_the_set_up_is_shell(code):
    assert docs.run(["bash", "-n", "-c", code], Path()).returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_public_names_in_the_text_exist(page):
    import gpuscope

    names = set(re.findall(r"\b(?:gs|gpuscope)\.(\w+)", page.read_text(encoding="utf-8")))
    unknown = {name for name in names - set(dir(gpuscope)) if importlib.util.find_spec(f"gpuscope.{name}") is None}
    assert unknown - {"gscope", "fish"} == set()


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_files_of_results_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = [link for link in re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", text) if link]
    assert [link for link in links if not (page.parent / link).exists()] == []
    named = re.findall(r"`((?:benchmarks|examples|tests|docs)/[\w./-]+\.\w+)`", text)
    assert [name for name in named if not (REPOSITORY / name).exists()] == []


def test_a_newcomer_reads_a_page_and_a_half():
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 135
    assert [line for line in lines if len(line) > 400 and not line.startswith("[Documentation]")] == []


def test_each_environment_variable_of_ours_is_listed():
    page = (REPOSITORY / "docs" / "reference" / "environment_variables.md").read_text(encoding="utf-8")
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "python" / "gpuscope").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'"(GPUSCOPE_\w+)"', text)}
    assert read
    assert [name for name in read if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "recording", sorted((REPOSITORY / "docs" / "recordings").glob("*.gscope")), ids=lambda path: path.stem
)
def test_a_recording_of_the_docs_is_whole_and_small(recording):
    import gpuscope

    assert recording.stat().st_size <= 1_000_000
    loaded = gpuscope.load(recording)
    assert loaded.audit().complete
    assert loaded.trace.info["cuda.driver_version"] == "13.0"
    assert f"{recording.name} |" in (recording.parent / "README.md").read_text(encoding="utf-8")
    assert f'href="gallery/{recording.stem}.html"' in (REPOSITORY / "docs" / "gallery.md").read_text(encoding="utf-8")


def test_each_public_name_is_in_the_reference():
    import importlib

    import gpuscope

    pages = "".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs/reference/api").glob("*.md"))
    listed = {name.rsplit(".", 1)[-1] for name in re.findall(r"auto(?:function|class):: (\S+)", pages)}
    # Callbacks import their trainer, which may not be here; gpuscope itself has no name of them.
    rooms = re.findall(r"automodule:: (?!gpuscope\.integrations\.)(\S+)", pages)
    for room in rooms:
        module = importlib.import_module(room)
        names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
        listed |= {name for name in names if getattr(getattr(module, name), "__doc__", None)}
    modules = {room.rsplit(".", 1)[-1] for room in rooms} | {"profiler"}
    assert set(gpuscope.__all__) - listed - modules == {"__version__", "itt"}  # a module of torch


# -- examples ----------------------------------------------------------------------------------------------------------

EXAMPLES = {
    "train.py": (
        ("--steps", "10", "--width", "4", "--report", "report.html"),
        "torch",
        "not enough evidence|fine|would cut|is spent in",
    ),
    "slow_to_fast.py": (("slow",), "", "24 steps, loss"),
    "which_is_faster.py": (("0.2",), "", "softmax: wall"),
    "leak.py": (("--steps", "12"), "torch", r"leak\.py:\d+ main"),
    "serve.py": (("--requests", "104"), "", r"requests .*\b99\b.* took more than"),
}


@pytest.mark.parametrize("name", EXAMPLES, ids=lambda name: f"{name} {EXAMPLES[name][1]}".strip())
def test_an_example_runs_without_a_gpu(name, tmp_path):
    arguments, needs, expected = EXAMPLES[name]
    there(needs)
    finished = docs.run([sys.executable, str(REPOSITORY / "examples" / name), *arguments], tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert re.search(expected, finished.stdout), finished.stdout


def test_each_example_is_tested_and_listed():
    found = {path.name for path in (REPOSITORY / "examples").glob("*.py")}
    assert found == set(EXAMPLES)
    listed = (REPOSITORY / "examples" / "README.md").read_text(encoding="utf-8")
    assert [name for name in found if f"({name})" not in listed] == []


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_the_pictures_are_made_from_a_recording(tmp_path):
    from fakes.browser import BROWSERS

    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("no Chromium is installed")
    pytest.importorskip("playwright")
    finished = docs.run([sys.executable, str(REPOSITORY / "docs" / "make_pictures.py"), str(tmp_path)], tmp_path)
    assert finished.returncode == 0, finished.stderr
    for made in ("overview-light.png", "overview-dark.png"):
        new, kept = ((folder / made).read_bytes() for folder in (tmp_path, REPOSITORY / "docs" / "pictures"))
        assert new[16:24] == kept[16:24]  # width and height
