"""Whole trainings: they learn, they go on after a kill to the same bits, and they say what they did."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from PIL import Image

from davis import zoo
from davis.data import Preprocessing
from davis.locks import alone_in
from davis.models import load_model, preprocessing_of
from davis.training import Progress, Recipe, train
from davis.training.files import load_checkpoint, read_log
from davis.training.loop import evaluate
from davis.training.pictures import NORMALISATION, Data, normalised
from davis.zoo.weights import sha256_of

TINY = "resnet18(width=2)"


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"arch": TINY, "dataset": "colours", "batch": 20, "epochs": 4, "rate": 0.1, "padding": 2} | changes)


def test_it_learns(data: Data, tmp_path: Path) -> None:
    seen: list[Progress] = []
    card = train(recipe(epochs=8), tmp_path / "run", data=data, device="cpu", watch=seen.append)
    history = read_log(tmp_path / "run")
    assert [record["epoch"] for record in history] == list(range(1, 9))
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert card["accuracy"] > 0.8
    assert [round(record["rate"], 6) for record in history] == [0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert (seen[0].epoch, seen[-1].epoch, seen[-1].seconds_left) == (0, 8, 0.0)
    assert seen[1].step == 10


def test_the_card_and_the_weights(data: Data, tmp_path: Path) -> None:
    chosen = recipe(epochs=2, seed=3, images=104)
    card = train(chosen, tmp_path, data=data, device="cpu")
    assert json.loads((tmp_path / "card.json").read_text()) == card
    assert card["command"] == (
        "davis train 'resnet18(width=2)' colours --epochs 2 --batch 20 --padding 2 --seed 3 --images 104"
    )
    assert card["images_left_out_of_each_epoch"] == 4
    assert card["sha256"] == sha256_of(tmp_path / "weights.safetensors")
    assert card["recipe"] == chosen.to_dict()
    tensors = safetensors.torch.load_file(tmp_path / "weights.safetensors")
    assert tensors["stem.weight"].dtype == torch.float16
    assert tensors["norm.running_var"].dtype == torch.float32
    model = zoo.load_trained(tmp_path)
    assert evaluate(model, data.test) == card["accuracy"]
    assert (tmp_path / "curves.svg").read_text().startswith("<?xml")


class Cut(Exception):
    """Stands for a power cut."""


@pytest.mark.parametrize("step", [0, 10])
def test_cut_off_anywhere_it_ends_with_the_same_bits(data: Data, tmp_path: Path, step: int) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(recipe(), whole, data=data, device="cpu")

    def cut(progress: Progress) -> None:
        if (progress.epoch, progress.step) == (2, step):
            raise Cut

    with pytest.raises(Cut):
        train(recipe(), halves, data=data, device="cpu", watch=cut)
    assert len(read_log(halves)) == 2
    train(recipe(), halves, data=data, device="cpu")
    assert_same(whole, halves)


def assert_same(first: Path, second: Path) -> None:
    """Weights and momenta to the last bit, and what was logged but for the times."""
    assert (first / "weights.safetensors").read_bytes() == (second / "weights.safetensors").read_bytes()
    tensors = [safetensors.torch.load_file(folder / "checkpoint.safetensors") for folder in (first, second)]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    logs = [[{k: v for k, v in r.items() if k != "seconds"} for r in read_log(folder)] for folder in (first, second)]
    assert logs[0] == logs[1]


@pytest.mark.slow
def test_killed_it_ends_with_the_same_bits(place: Path, tmp_path: Path) -> None:
    """SIGKILL, at whatever instruction that falls, twice."""
    epochs = 12
    options = [TINY, str(place), "--epochs", str(epochs), "--batch", "20", "--rate", "0.05", "--device", "cpu"]
    command = [sys.executable, "-m", "davis.training", *options, "--out"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run([*command, str(whole)], check=True, env=environment, capture_output=True, timeout=300)
    for least in (2, 6):
        process = subprocess.Popen([*command, str(cut)], env=environment, stderr=subprocess.DEVNULL)
        while len(read_log(cut)) < least and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        assert not (cut / "card.json").exists()
    subprocess.run([*command, str(cut)], check=True, env=environment, capture_output=True, timeout=300)
    assert_same(whole, cut)


def test_the_command_is_one_that_a_shell_takes() -> None:
    chosen = Recipe(arch=TINY, dataset="my sets/it's; rm", epochs=2)
    assert shlex.split(chosen.command()) == ["davis", "train", TINY, "my sets/it's; rm", "--epochs", "2"]


def test_a_finished_training_is_not_done_again(data: Data, tmp_path: Path) -> None:
    card = train(recipe(epochs=1), tmp_path, data=data, device="cpu")

    def never(progress: Progress) -> None:
        raise AssertionError

    assert train(recipe(epochs=1), tmp_path, data=data, device="cpu", watch=never) == card


def swapped(data: Data, half: str) -> Data:
    """The same data but for the order of one half's pictures."""
    pictures = getattr(data, half)
    return data._replace(**{half: pictures._replace(images=pictures.images.flip(0))})


@pytest.mark.parametrize(("half", "told"), [("train", "on other pictures"), ("test", "tested with other pictures")])
def test_a_finished_training_is_that_of_its_pictures(data: Data, tmp_path: Path, half: str, told: str) -> None:
    card = train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    assert card["data"] == {"train": data.train.sha256(), "test": data.test.sha256()}
    with pytest.raises(ValueError, match=f"{told}; choose another folder"):
        train(recipe(epochs=1), tmp_path, data=swapped(data, half), device="cpu")


def test_a_card_of_before_says_nothing_of_pictures(data: Data, tmp_path: Path) -> None:
    """Such as that of the first run on a GPU."""
    card = train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    del card["data"]
    (tmp_path / "card.json").write_text(json.dumps(card))
    said: list[str] = []
    assert train(recipe(epochs=1), tmp_path, data=swapped(data, "test"), device="cpu", say=said.append) == card
    assert len(said) == 1
    assert "no digest of the pictures" in said[0]


def test_a_card_without_its_weights_is_no_finished_training(data: Data, tmp_path: Path) -> None:
    card = train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    weights = tmp_path / "weights.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1])
    with pytest.raises(ValueError, match="its sha256 differs"):
        train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"weights\.safetensors is missing, which card\.json describes"):
        train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    (tmp_path / "card.json").unlink()  # as the message says; the checkpoint has it all
    assert train(recipe(epochs=1), tmp_path, data=data, device="cpu")["sha256"] == card["sha256"]
    assert weights.read_bytes() == content


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"name": "cifar', "\udcff"])
@pytest.mark.parametrize("name", ["card.json", "log.jsonl", "checkpoint.safetensors"])
def test_broken_files_are_named(data: Data, tmp_path: Path, name: str, content: str) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode(errors="surrogateescape"))
    if name == "log.jsonl" and not content:  # as good as none
        train(recipe(epochs=1), tmp_path, data=data, device="cpu")
        return
    with pytest.raises(ValueError) as error:
        train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("key", ["history", "recipe"])
@pytest.mark.parametrize("value", ["", "{}", "[]", "[{}]", "3"])
def test_broken_metadata_of_a_checkpoint(data: Data, tmp_path: Path, key: str, value: str) -> None:
    train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    (tmp_path / "card.json").unlink()
    file = tmp_path / "checkpoint.safetensors"
    with safetensors.safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata | {key: value})
    if (key, value) == ("history", "[]"):
        return  # a checkpoint before the first epoch
    with pytest.raises(ValueError, match=r"checkpoint\.safetensors is damaged"):
        train(recipe(epochs=1), tmp_path, data=data, device="cpu")


@pytest.mark.parametrize(
    ("epochs", "change", "message"),
    [
        ([1, 2, 3, 4, 5], {}, "its history has other epochs than 1 to 4 at most"),
        ([2], {}, "its history has other epochs than 1 to 4 at most"),
        ([1], {"half": True}, "is damaged: 'model.stem.weight' is torch.float16 there and torch.float32 here"),
    ],
)
def test_an_edited_checkpoint(
    data: Data, tmp_path: Path, epochs: list[int], change: dict[str, bool], message: str
) -> None:
    train(recipe(epochs=4), tmp_path, data=data, device="cpu")
    (tmp_path / "card.json").unlink()
    file = tmp_path / "checkpoint.safetensors"
    with safetensors.safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    record = json.loads(metadata["history"])[0]
    metadata["history"] = json.dumps([record | {"epoch": epoch} for epoch in epochs])
    tensors = safetensors.torch.load_file(file)
    if change:
        tensors["model.stem.weight"] = tensors["model.stem.weight"].half()
    safetensors.torch.save_file(tensors, file, metadata)
    with pytest.raises(ValueError, match=message):
        train(recipe(epochs=4), tmp_path, data=data, device="cpu")


@pytest.mark.parametrize("name", ["weights.safetensors", "curves.svg", "lock", "notes.txt", "log.jsonl"])
def test_a_folder_of_somebody_else_is_left_alone(data: Data, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ValueError, match="choose another folder"):
        train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(name, "mine")]


def test_what_a_kill_or_a_starter_leaves_is_no_somebody_else_s(data: Data, tmp_path: Path) -> None:
    for name in ("lock", "output.log", "checkpoint.safetensors.next"):
        (tmp_path / name).touch()
    train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    assert not (tmp_path / "lock").exists()


def test_a_place_that_cannot_be_written_to(data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot write in .*file \(File exists\); choose another folder"):
        train(recipe(epochs=1), tmp_path / "file", data=data, device="cpu")

    def refuse(*arguments: object, **settings: object) -> None:
        raise PermissionError(13, "Permission denied", "somewhere")  # root may write everywhere

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(ValueError, match=r"cannot write in .*run \(Permission denied\); choose another folder"):
        train(recipe(epochs=1), tmp_path / "run", data=data, device="cpu")


def test_another_training_is_kept_out_of_the_folder(data: Data, tmp_path: Path) -> None:
    train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    with pytest.raises(ValueError, match="holds a training with seed=0, and 1 is asked for; choose another folder"):
        train(recipe(epochs=1, seed=1), tmp_path, data=data, device="cpu")
    (tmp_path / "card.json").unlink()
    with pytest.raises(ValueError, match="holds a training with epochs=1, and 2"):
        train(recipe(epochs=2), tmp_path, data=data, device="cpu")


def test_checkpoints_less_often(data: Data, tmp_path: Path) -> None:
    def cut(progress: Progress) -> None:
        if progress.epoch == 3:
            raise Cut

    with pytest.raises(Cut):
        train(recipe(), tmp_path / "halves", data=data, device="cpu", save_every=2, watch=cut)
    stored = load_checkpoint(tmp_path / "halves", recipe(), data=data.train.sha256())
    assert stored is not None
    assert len(stored[1]) == 2
    train(recipe(), tmp_path / "halves", data=data, device="cpu")
    train(recipe(), tmp_path / "whole", data=data, device="cpu")
    assert_same(tmp_path / "whole", tmp_path / "halves")


def test_other_pictures_are_not_mixed_in(data: Data, tmp_path: Path) -> None:
    def cut(progress: Progress) -> None:
        if progress.epoch == 1:
            raise Cut

    with pytest.raises(Cut):
        train(recipe(), tmp_path / "one", data=data, device="cpu", watch=cut)
    images = data.train.images.clone()
    images[0, 0, 0, 0] += 1
    other = data._replace(train=data.train._replace(images=images))
    with pytest.raises(ValueError, match="holds a training on other pictures"):
        train(recipe(), tmp_path / "one", data=other, device="cpu")


def test_other_test_pictures_are_not_mixed_in(data: Data, tmp_path: Path) -> None:
    def cut(progress: Progress) -> None:
        if progress.epoch == 1:
            raise Cut

    with pytest.raises(Cut):
        train(recipe(), tmp_path, data=data, device="cpu", watch=cut)
    other = swapped(data, "test")
    with pytest.raises(ValueError, match="tested with other pictures; choose another folder"):
        train(recipe(), tmp_path, data=other, device="cpu")
    file = tmp_path / "checkpoint.safetensors"
    with safetensors.safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    del metadata["test"]  # as checkpoints of before are
    safetensors.torch.save_file(safetensors.torch.load_file(file), file, metadata)
    assert train(recipe(), tmp_path, data=other, device="cpu")["data"] == other.digests()


def test_one_training_at_a_time_in_a_folder(data: Data, tmp_path: Path) -> None:
    with alone_in(tmp_path / "one", "trains in"), pytest.raises(ValueError, match="another process trains in"):
        train(recipe(), tmp_path / "one", data=data, device="cpu")
    train(recipe(), tmp_path / "one", data=data, device="cpu")


def test_a_line_of_the_log_that_a_kill_lost_is_written_again(data: Data, tmp_path: Path) -> None:
    """Killed between the last checkpoint and its line; the log beside a checkpoint may be damaged, too."""
    train(recipe(epochs=2), tmp_path, data=data, device="cpu")
    log = tmp_path / "log.jsonl"
    whole = log.read_text()
    for left in (whole.splitlines()[0] + "\n", "no log"):
        for name in ("card.json", "weights.safetensors"):
            (tmp_path / name).unlink()
        log.write_text(left)
        train(recipe(epochs=2), tmp_path, data=data, device="cpu")
        assert log.read_text() == whole


def test_a_card_says_with_how_many_threads(data: Data, tmp_path: Path) -> None:
    assert train(recipe(epochs=1), tmp_path, data=data, device="cpu")["threads"] == torch.get_num_threads()


def test_more_images_than_there_are(data: Data, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="colours has 200 images to train on, not 300"):
        train(recipe(images=300), tmp_path, data=data, device="cpu")


def test_a_folder_in_the_place_of_a_file(data: Data, tmp_path: Path) -> None:
    (tmp_path / "card.json").mkdir()
    with pytest.raises(ValueError, match=r"card\.json is no file, where a training would write one"):
        train(recipe(), tmp_path, data=data, device="cpu")


def test_a_card_of_another_network(data: Data, tmp_path: Path) -> None:
    train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    card = json.loads((tmp_path / "card.json").read_text())
    for change, message in (
        ({"arch": "resnet34(width=2)"}, "its network is not that of its recipe"),
        ({"accuracy": 5}, "its accuracy, seconds or data are none"),
        ({"accuracy": float("nan")}, "its accuracy, seconds or data are none"),
    ):
        (tmp_path / "card.json").write_text(json.dumps(card | change))
        with pytest.raises(ValueError, match=f"is damaged .{message}"):
            train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    for change in ({"classes": 5}, {"classes": "x"}, {"arch": "resnet34(width=2)"}, {"head": "godin"}):
        (tmp_path / "card.json").write_text(json.dumps(card | change))
        with pytest.raises(ValueError, match=r"card\.json") as error:
            zoo.load_trained(tmp_path)
        assert "\n" not in str(error.value)
    (tmp_path / "card.json").write_text(json.dumps(card | {"preprocessing": None}))
    with pytest.raises(ValueError, match="its preprocessing is none"):
        load_model(str(tmp_path))


def test_an_unfinished_training_is_no_model_yet(data: Data, tmp_path: Path) -> None:
    train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    (tmp_path / "card.json").unlink()
    with pytest.raises(FileNotFoundError, match="holds no finished training"):
        load_model(str(tmp_path))


def test_a_damaged_checkpoint(data: Data, tmp_path: Path) -> None:
    (tmp_path / "checkpoint.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match=r"is damaged .*remove it to begin anew"):
        train(recipe(), tmp_path, data=data, device="cpu")


def test_a_loss_that_explodes(data: Data, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the loss of colours-resnet18_width2 is nan after epoch \d; lower the rate"):
        train(recipe(rate=1000), tmp_path, data=data, device="cpu")


def test_seeds_differ_and_repeat(data: Data, tmp_path: Path) -> None:
    digests = []
    for number, seed in enumerate((0, 0, 1)):
        torch.manual_seed(number)  # what the caller drew before must not matter
        digests.append(train(recipe(epochs=1, seed=seed), tmp_path / str(number), data=data, device="cpu")["sha256"])
    assert digests[0] == digests[1] != digests[2]


def test_the_caller_s_random_numbers_are_left_alone(data: Data, tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    assert torch.equal(torch.rand(3), expected)


def test_a_godin_head_learns(data: Data, tmp_path: Path) -> None:
    train(recipe(head="godin"), tmp_path, data=data, device="cpu")
    history = read_log(tmp_path)
    assert history[-1]["loss"] < history[0]["loss"]
    assert zoo.load_trained(tmp_path).head.similarity == "cosine"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "resnet19"}, "did you mean 'resnet18'?"),
        ({"head": "cosine"}, "unknown head 'cosine'; known: linear, godin"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"images": 10}, "10 images do not fill one batch of 20"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"decay": float("nan")}, "decay must be from 0 to 1000, got nan"),
        ({"rate": 1e300}, "rate must be above 0 and at most 1000, got 1e+300"),
        ({"seed": 2**32}, "seed must be at most 4294967295"),
        ({"epochs": True}, "epochs must be a whole number, got True"),
        ({"dataset": ""}, "dataset must be a name in quotes, got ''"),
    ],
)
def test_bad_recipes(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        recipe(**changes)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("dataset", "plain", "name"),
    [
        ("good/", "good", "good-resnet18_width2"),
        ("./good", "good", "good-resnet18_width2"),
        ("cifar10", "cifar10", "cifar10-resnet18_width2"),
        ("cifar10/", "./cifar10", "cifar10-resnet18_width2"),
    ],
)
def test_a_dataset_has_one_spelling(dataset: str, plain: str, name: str) -> None:
    assert (recipe(dataset=dataset).dataset, recipe(dataset=dataset).name) == (plain, name)


def test_a_folder_named_by_a_dot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good").mkdir()
    monkeypatch.chdir(tmp_path / "good")
    assert recipe(dataset=".").name == "good-resnet18_width2"


def test_the_seed_is_in_the_name_but_0() -> None:
    assert recipe(seed=0).name == "colours-resnet18_width2"
    assert recipe(seed=1, head="godin").name == "colours-resnet18_width2_godin_seed1"


def test_checkpoints_are_an_epoch_apart_at_least(data: Data, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1 epoch apart, got save_every=0"):
        train(recipe(), tmp_path, data=data, device="cpu", save_every=0)


def test_devices(data: Data, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="training runs on cpu or cuda"):
        train(recipe(), tmp_path, data=data, device="meta")
    with pytest.raises(ValueError, match="unknown device 'foo'"):
        train(recipe(), tmp_path, data=data, device="foo")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no CUDA; try cpu"):
            train(recipe(), tmp_path, data=data, device="cuda")


def test_prepared_as_the_card_says_pictures_are_those_of_the_training(data: Data, tmp_path: Path) -> None:
    card = train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    prepare = Preprocessing.from_dict(card["preprocessing"])
    prepared = torch.stack([prepare(Image.fromarray(image.numpy())) for image in data.test.images])
    assert torch.equal(prepared, normalised(data.test.images))


def test_a_card_of_before_that_says_another_side_is_made_anew(data: Data, tmp_path: Path) -> None:
    card = train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    (tmp_path / "card.json").write_text(json.dumps(card | {"preprocessing": NORMALISATION.to_dict()}))
    with pytest.raises(ValueError, match=r"card\.json does not say how these pictures are prepared; remove it"):
        train(recipe(epochs=1), tmp_path, data=data, device="cpu")
    (tmp_path / "card.json").unlink()
    assert train(recipe(epochs=1), tmp_path, data=data, device="cpu") == card


def test_pictures_that_are_not_square_are_refused_at_the_start(data: Data, tmp_path: Path) -> None:
    long = Data(*(half._replace(images=half.images[:, :, :12]) for half in data[:2]), data.classes)
    with pytest.raises(ValueError, match="the pictures are 16 x 12 pixels; give square ones"):
        train(recipe(epochs=1), tmp_path / "run", data=long, device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_folder_is_a_model_name(data: Data, tmp_path: Path) -> None:
    """It, and its weights under another name, come with the preprocessing of the card; the zoo's names with CIFAR's."""
    folder = tmp_path / "trained"
    recipe = Recipe(arch=TINY, dataset="colours", epochs=1, batch=20)
    train(recipe, folder, data=data, device="cpu")
    first = load_model(str(folder))
    assert torch.equal(first(torch.ones(1, 3, 16, 16)), zoo.load_trained(folder)(torch.ones(1, 3, 16, 16)))
    assert preprocessing_of(str(folder), first) == replace(NORMALISATION, size=16, resize=16)
    name = "davis.zoo:cifar10_resnet18"
    assert preprocessing_of(name, load_model(name, weights="none")) == NORMALISATION
    with pytest.raises(ValueError, match="has its own weights and classes"):
        load_model(str(folder), weights="none")
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(
        json.dumps(card | {"preprocessing": card["preprocessing"] | {"size": 24, "resize": 28}})
    )
    assert preprocessing_of(str(folder), load_model(str(folder))).size == 24
