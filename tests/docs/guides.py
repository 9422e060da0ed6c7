"""The guides of DEVELOPERS.md as programs: each `### Adding ...` section is carried out in a copy of the project.

* A ```python block below `# path` is a new file, or is added to the end of one that is there. With the path alone it stands
  for the example of docs/experiments.md.
* A ```diff block below `# path` replaces the text of `-` lines, which must occur once, by that of the `+` lines below.
* A ```console block is commands: `python ...` runs with the copy's own sources.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import ROOT

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One block: its language, and its lines."""

    language: str
    text: str

    def __str__(self) -> str:
        return self.text.partition("\n")[0].removeprefix("# ").replace("/", ".")

    def carry_out(self, project: Path) -> None:
        """Do what the block says in a copy of the project."""
        if self.language == "console":
            for line in self.text.splitlines():
                run(line, project)
            return
        path, _, body = self.text.partition("\n")
        assert path.startswith("# "), f"a block does not begin with the path of its file: {path}"
        file = project / path.removeprefix("# ")
        if self.language == "diff":
            _edit(file, body)
        elif file.exists():
            file.write_text(f"{file.read_text().rstrip()}\n\n\n{body.strip()}\n")
        else:
            file.write_text(body or _example(project / "docs" / "experiments.md"))


def _edit(file: Path, body: str) -> None:
    for old, new in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", body, re.MULTILINE):
        before, after = (re.sub(r"^[-+]", "", lines, flags=re.MULTILINE).rstrip("\n") for lines in (old, new))
        text = file.read_text()
        assert text.count(before) == 1, f"{file} has {text.count(before)} times\n{before}"
        file.write_text(text.replace(before, after))


def _example(page: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    return code


def guides() -> dict[str, list[Step]]:
    """The steps of every guide, by title."""
    text = (ROOT / "DEVELOPERS.md").read_text(encoding="utf-8")
    sections = re.split(r"^### ", text.partition("\n## Adding\n")[2].partition("\n## ")[0], flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: [Step(*found) for found in _FENCE.findall(part)] for part in sections}


def copy_of_the_project(folder: Path) -> Path:
    """A copy of what guides change; the rest (results, benchmarks, settings) is linked."""
    copied = ("src", "tests", "scripts", "docs")
    for name in copied:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.name not in copied and (not path.name.startswith(".") or path.name == ".github"):
            (folder / path.name).symlink_to(path)
    return folder


def run(command: str, project: Path) -> str:
    """Run a command of a guide; what it says goes into the error if it fails."""
    first, *rest = shlex.split(command)
    assert first == "python", command
    environment = {
        **os.environ,
        "PYTHONPATH": str((project if (project / "src").exists() else ROOT) / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run([sys.executable, *rest], cwd=project, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    return done.stdout
