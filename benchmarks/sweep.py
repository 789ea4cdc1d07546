"""Does `Backbone` find the pooled map of every kind of timm classifier? Random weights, nothing is downloaded.

python benchmarks/sweep.py RESULTS.jsonl > benchmarks/sweep.md      (goes on where it was cut off)

For every module of ``timm.list_modules()`` the smallest variant that has a classifier and is no ``test_`` model, and
one model for every kind of ``global_pool``: those that are some model's own, and those that a small ResNet and a small
ViT can be made with. Untrained networks give constant or zero logits, which would pass any
check: heads, BatchNorm statistics and everything that starts at a constant are randomised, and a network whose logits
do not vary from image to image does not count as passed. Denominator, fixed beforehand: models whose
``forward_features`` has four dimensions, or tokens with average pooling.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
import warnings
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import davis

timm = import_module("timm")  # after davis, which lets torchvision be imported beside a CPU build of torch

SMALL = 128  # pixels, for models that take any size
KINDS = {
    "resnet10t": ("fast", "fastavg", "max", "fastmax", "avgmax", "fastavgmax", "catavgmax", "fastcatavgmax"),
    "vit_tiny_patch16_224": ("avg", "avgmax", "max", "map"),
}
VARIES = 3e-3  # of the largest logit: three times what the self-check lets pass


def main(file: Path) -> None:
    """Sweep what is not in the file yet, then write the page."""
    torch.set_num_threads(1)
    done = {row["model"]: row for row in map(json.loads, file.read_text().splitlines())} if file.is_file() else {}
    chosen = chosen_models(file.with_suffix(".sizes.json"))
    for module, name in chosen.items():
        if name not in done:
            done[name] = {"model": name, "module": module, **attempt(name)}
            with file.open("a") as stream:
                stream.write(json.dumps(done[name]) + "\n")
            print(f"{name}: {done[name]['outcome']} {done[name].get('error', '')}"[:150], file=sys.stderr, flush=True)
    write([done[name] for name in chosen.values()])
    headless = sorted(set(timm.list_modules()) - chosen.keys())
    print(f"\n## Modules without a classifier ({len(headless)})\n\n{', '.join(f'`{name}`' for name in headless)}")


def chosen_models(file: Path) -> dict[str, str]:
    """The smallest variant of every module, and further modules' for kinds of pooling that are missing among them."""
    sizes: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    chosen: dict[str, str] = {}
    for module in sorted(timm.list_modules()):
        names = [name for name in timm.list_models(module=module) if not name.startswith("test_")]
        for name in names:
            if name not in sizes:
                sizes[name] = measure(name)
        file.write_text(json.dumps(sizes))
        with_head = [name for name in names if sizes[name] is not None]
        if with_head:
            chosen[module] = min(with_head, key=lambda name: sizes[name][0])
    kinds = {sizes[name][1] for name in chosen.values()}
    for name, found in sorted(sizes.items(), key=lambda item: item[1][0] if item[1] else 0):
        if found is not None and found[1] not in kinds:
            kinds.add(found[1])
            chosen[f"global_pool={found[1]}"] = name
    for name, known in KINDS.items():
        chosen |= {f"{name}, global_pool={kind}": f"{name}(global_pool={kind})" for kind in known}
    return chosen


def create(name: str) -> nn.Module:
    """The untrained model; a name may end in (global_pool=KIND)."""
    base, _, kind = name.rstrip(")").partition("(global_pool=")
    made: nn.Module = timm.create_model(base, **({"global_pool": kind} if kind else {}))
    return made


def measure(name: str) -> tuple[int, str] | None:
    """The number of parameters and the kind of pooling; None where the model has no classifier."""
    if timm.get_pretrained_cfg(name) is None:
        return None
    try:
        with torch.device("meta"), quiet():
            model = timm.create_model(name)
    except Exception:  # some cannot be made without numbers
        with quiet():
            model = timm.create_model(name)
    if getattr(model, "num_classes", 0) < 2 or not hasattr(model, "forward_features"):
        return None
    return sum(parameter.numel() for parameter in model.parameters()), str(getattr(model, "global_pool", ""))[:20]


def attempt(name: str) -> dict[str, Any]:
    """What happens when davis looks at the model."""
    torch.manual_seed(0)
    started = time.monotonic()
    with quiet():
        model = randomised(create(name))
    images = None
    for size in sizes_of(model):
        images = pictures(size)
        try:
            with torch.no_grad(), quiet():
                settle(model, images)
                features = model.forward_features(images)
            break
        except Exception:
            images = None
    if images is None:
        return {"outcome": "does not run", "counts": False}
    shape = tuple(features.shape) if isinstance(features, Tensor) else None
    pooling = str(getattr(model, "global_pool", ""))
    counts = shape is not None and (len(shape) == 4 or (len(shape) == 3 and pooling == "avg"))
    found: dict[str, Any] = {"features": shape, "pooling": pooling[:40], "size": images.shape[-1], "counts": counts}
    try:
        backbone = davis.Backbone(model)
        with quiet():
            activations = backbone(images, statistics=("std", "max"))
        spread = float(activations.logits.std(0).max() / activations.logits.abs().max())
        assert activations.max is not None
        found |= {"tap": backbone.describe()["tap"], "map": backbone.map_shape, "spread": spread}
        found["same_map"] = same_map(features, activations, getattr(model, "num_prefix_tokens", 0))
        one = len(backbone.map_shape or ()) and all(side == 1 for side in (backbone.map_shape or ())[1:])
        found["outcome"] = (
            "constant logits" if not spread > VARIES else "passed, map of one position" if one else "passed"
        )
    except Exception as error:  # any error is an outcome here
        found |= {"outcome": "refused", "error": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    return found | {"seconds": round(time.monotonic() - started, 1)}


def same_map(features: object, activations: davis.Activations, prefix: int) -> bool | None:
    """Whether the maxima are those of timm's own features; None where those are not what the model averages."""
    if not isinstance(features, Tensor) or features.ndim < 3 or activations.max is None:
        return None
    tokens = features[:, prefix:] if features.ndim == 3 else features
    for values in (features, tokens.movedim(-1, 1)):
        positions = values.flatten(2)
        if positions.shape[1] == activations.mean.shape[1] and close(positions.mean(2), activations.mean):
            return close(positions.amax(2), activations.max)
    return None


def close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-4 * other.abs().max())


def pictures(size: tuple[int, int, int]) -> Tensor:
    """Three unlike images: noise, a bright ramp, stripes under faint noise."""
    noise = torch.randn(2, *size)
    ramp = torch.linspace(-1, 3, size[2]).expand(size)
    stripes = torch.sin(torch.arange(size[1]) / 3.0)[:, None].expand(size)
    return torch.stack([noise[0], ramp, 2 * stripes + 0.3 * noise[1]])


def sizes_of(model: nn.Module) -> list[tuple[int, int, int]]:
    config = model.pretrained_cfg
    own = tuple(config["input_size"])
    if config.get("fixed_input_size") or own[1] <= SMALL:
        return [own]
    return [(own[0], SMALL, SMALL), own]


def randomised(model: nn.Module) -> nn.Module:
    """Numbers everywhere: what starts at zero or at one would hide a wrong guess."""
    for module in model.modules():
        for name in ("running_mean", "running_var"):
            buffer = getattr(module, name, None)
            if isinstance(buffer, Tensor):
                buffer.uniform_(0.5, 1.5) if name == "running_var" else buffer.normal_(0, 0.2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and parameter.max() == parameter.min():
                noise = torch.randn_like(parameter)
                if parameter.max() == 0:
                    parameter.copy_(noise * (0.1 if parameter.ndim == 1 else 0.02))
                else:
                    parameter.mul_(1 + 0.1 * noise)
    classifier = model.get_classifier()
    for head in classifier if isinstance(classifier, tuple) else (classifier,):
        for parameter in head.parameters() if isinstance(head, nn.Module) else ():
            parameter.data.normal_(0, 0.05)
    return model.eval()


def settle(model: nn.Module, images: Tensor) -> None:
    """Give BatchNorm layers statistics near those of the images: with others, depth drowns the signal in biases."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    model.forward(images)
    model.eval()
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        if norm.running_var is not None:
            norm.running_var.mul_(torch.empty_like(norm.running_var).uniform_(0.7, 1.3)).add_(1e-3)


@contextlib.contextmanager
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write(rows: list[dict[str, Any]]) -> None:
    """The page."""
    counted = [row for row in rows if row["counts"]]
    passed = [row for row in counted if row["outcome"].startswith("passed")]
    made = [row for row in counted if "(global_pool=" in row["model"]]
    twins = [row for row in made if "=fast" in row["model"]]  # another way to compute the same
    print(f"# timm {timm.__version__}\n")
    print(f"{len(rows)} models looked at. Written by `benchmarks/sweep.py`. In the denominator are those whose")
    print("`forward_features` has four dimensions, or tokens with average pooling.\n")
    print("| models | in the denominator | pass | |\n|---|---|---|---|")
    for title, left_out in (
        ("as timm makes them, the smallest of every module and one for every kind of pooling among them", made),
        ("and a small ResNet and ViT made with the other kinds of `global_pool`, `fast` ones counted as kinds", []),
        ("the same, `fast` kinds counted as those that they compute", twins),
    ):
        those, good = ([row for row in part if row not in left_out] for part in (counted, passed))
        print(f"| {title} | {len(those)} | {len(good)} | {len(good) / max(1, len(those)):.1%} |")
    same = [row["same_map"] for row in passed if row["same_map"] is not None]
    print(f"\nOf those that pass, {len(same)} average what their `forward_features` gives: there the maxima of each")
    print(
        f"channel were compared with those of that map, and {sum(same)} agree. The others put layers between the two."
    )
    print("\nWhere a maximum has a part in the pooling, the average is not what the last layer reads: refused.")
    print("\n## In the denominator, and not passed\n")
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        outside = f"outside, {row['outcome']}"
        groups["failed" if row["counts"] and row not in passed else "passed" if row["counts"] else outside].append(row)
    for row in groups.pop("failed", []):
        print(f"- `{row['model']}` ({row['module']}): {row['outcome']}; {row.get('error', '')}")
    for title, members in groups.items():
        print(f"\n## {title.capitalize()} ({len(members)})\n")
        if "refused" in title:
            print("\n".join(f"- `{row['model']}`: {row['error']}" for row in members))
            continue
        print(", ".join(f"`{row['model']}`" + (" (1x1 map)" if "one" in row["outcome"] else "") for row in members))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
