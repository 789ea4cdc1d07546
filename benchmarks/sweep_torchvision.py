"""Does `Backbone` find the pooled map of every torchvision classifier? Random weights, nothing is downloaded.

python benchmarks/sweep_torchvision.py > benchmarks/sweep_torchvision.md

All names of ``torchvision.models.list_models`` that are classifiers of images; weights, BatchNorm statistics and heads
randomised as in benchmarks/sweep.py. AlexNet and VGG flatten their last map, and ViTs read one token: those must be
refused with a reason, all others must pass.
"""

from __future__ import annotations

import sys

import torch
from sweep import VARIES, pictures, quiet, settle
from torch import nn

import davis  # before torchvision, which it lets be imported beside a CPU build of torch


def main() -> None:
    torch.set_num_threads(1)
    import torchvision

    models = torchvision.models
    outcomes: dict[str, str] = {}
    for name in models.list_models(module=models):
        outcomes[name] = attempt(name, models)
        print(f"{name}: {outcomes[name]}", file=sys.stderr, flush=True)
    passed = [name for name, outcome in outcomes.items() if outcome.startswith("passed")]
    print(f"# torchvision {torchvision.__version__.split('+')[0]}\n")
    print(f"Written by `python benchmarks/sweep_torchvision.py`: {len(outcomes)} classifiers, {len(passed)} pass.\n")
    print("## Refused\n\n| model | reason |\n|---|---|")
    for name, outcome in outcomes.items():
        if name not in passed:
            print(f"| `{name}` | {outcome} |")
    print(f"\n## Passed\n\n{', '.join(f'`{name}`' for name in passed)}")


def attempt(name: str, models: object) -> str:
    """passed, or why not."""
    torch.manual_seed(0)
    options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    size = 299 if name == "inception_v3" else 224 if name.startswith(("vit", "swin", "maxvit")) else 128
    with quiet():
        model: nn.Module = models.get_model(name, weights=None, **options).eval()  # type: ignore[attr-defined]
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.numel() > 1 and parameter.max() == parameter.min():
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            images = pictures((3, size, size))
            settle(model, images)
        try:
            backbone = davis.Backbone(model)
            logits = backbone(images).logits
        except Exception as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    varies = float(logits.std(0).max() / logits.abs().max()) > VARIES
    return f"passed, map {backbone.map_shape}" if varies else "constant logits"


if __name__ == "__main__":
    main()
