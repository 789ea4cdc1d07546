"""One step of training as a plain function of buffers that never move, and the same step as a CUDA graph.

An epoch's order, cuts and flips are drawn on the host from (seed, epoch) and copied into buffers; the step counts
itself forward on the device and takes its rows from there. So a step needs nothing from the host, the random numbers
are the same on every device, and a resumed training has no state of a generator to restore.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from davis.stages.godin import GodinHead
from davis.training.pictures import Pictures, cut, normalised, padded
from davis.training.recipe import Recipe

_WARM_UP = 4  # steps before a capture: kernels are chosen and workspaces made in them


class Step:
    """A model in training, its momenta and the epoch's plan; calling it takes one step of SGD."""

    def __init__(self, model: nn.Module, pictures: Pictures, recipe: Recipe, *, compiled: bool = False) -> None:
        self.model = model
        self._forward = _fused(model) if compiled else model
        self.recipe = recipe
        device = pictures.images.device
        self.side = (pictures.images.shape[1], pictures.images.shape[2])
        if recipe.padding >= min(self.side):
            raise ValueError(
                f"a padding of {recipe.padding} would cut out windows with nothing of the picture in them; "
                f"give less than its side of {min(self.side)}"
            )
        self.images = padded(pictures.images, recipe.padding)
        self.labels = pictures.labels
        self.steps = len(self.labels) // recipe.batch  # the last partial batch is left out: shapes stay the same
        if self.steps == 0:
            raise ValueError(f"{len(self.labels)} images do not fill one batch of {recipe.batch}; give more")
        named: dict[str, Tensor] = dict(model.named_parameters())
        self.momenta = {name: torch.zeros_like(parameter) for name, parameter in named.items()}
        free = _free_of_decay(model)
        self._groups = [
            ([named[name] for name in names], [self.momenta[name] for name in names], decay)
            for names, decay in (
                ([name for name in named if name not in free], recipe.decay),
                ([name for name in named if name in free], 0.0),
            )
            if names
        ]
        self._parameters = [parameter for parameters, _, _ in self._groups for parameter in parameters]
        self._half = device.type == "cuda"
        # What a step reads and counts; filled in place, since a graph knows them by their address.
        self._plan = {
            name: torch.zeros(self.steps * recipe.batch, dtype=torch.int64, device=device)
            for name in ("order", "top", "left", "flip")
        }
        self._lane = torch.arange(recipe.batch, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._rate = torch.zeros((), device=device)
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._right = torch.zeros((), dtype=torch.int64, device=device)
        self._behind: torch.cuda.Event | None = None

    def begin(self, epoch: int) -> None:
        """Get ready for the steps of an epoch."""
        drawn = draw(len(self.labels), self.recipe, epoch)
        for name, values in self._plan.items():
            values.copy_(drawn[name][: len(values)])
        self._rate.fill_(self.recipe.rate_at(epoch))
        for counter in (self._count, self._loss, self._right):
            counter.zero_()

    def __call__(self) -> None:
        """Take the next step of the epoch; nothing in it waits for the device or reads from it."""
        places = torch.remainder(self._count, self.steps) * self.recipe.batch + self._lane
        rows, top, left, flip = (self._plan[name][places] for name in ("order", "top", "left", "flip"))
        images = normalised(cut(self.images, rows, top, left, flip, self.side))
        labels = self.labels[rows]
        # Without its cache, which would outlive the capture; no weight is used twice in a step anyway.
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self._half, cache_enabled=False):
            logits = self._forward(images)
        loss = F.cross_entropy(logits.float(), labels)
        gradients = iter(torch.autograd.grad(loss, self._parameters))
        with torch.no_grad():
            for parameters, momenta, decay in self._groups:
                own = [next(gradients) for _ in parameters]
                descend(parameters, own, momenta, rate=self._rate, momentum=self.recipe.momentum, decay=decay)
            self._loss.add_(loss.detach())
            self._right.add_(logits.detach().argmax(1).eq(labels).sum())
            self._count.add_(1)

    def pace(self) -> None:
        """Wait until the device has got to where the last call of this was, so that what is told of it is true."""
        if self._half:
            reached = torch.cuda.Event(blocking=True)
            reached.record()
            if self._behind is not None:
                self._behind.synchronize()
            self._behind = reached

    def outcome(self) -> tuple[float, float]:
        """The mean loss and the accuracy over the steps of this epoch; waits for the device."""
        steps = max(int(self._count), 1)
        return float(self._loss) / steps, int(self._right) / (steps * self.recipe.batch)

    def tensors(self) -> dict[str, Tensor]:
        """All that a step changes and a checkpoint keeps: the live tensors, not copies."""
        model = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return model | {f"momentum.{name}": tensor for name, tensor in self.momenta.items()}

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put what `tensors` gave back in place."""
        own = self.tensors()
        if own.keys() != tensors.keys():
            raise ValueError(
                f"it belongs to another network: {sorted(own.keys() ^ tensors.keys())[0]!r}; choose another folder"
            )
        for name, tensor in own.items():
            if tensors[name].shape != tensor.shape:
                raise ValueError(
                    f"it belongs to another network: {name!r} is {tuple(tensors[name].shape)} there and "
                    f"{tuple(tensor.shape)} here; choose another folder"
                )
            if tensors[name].dtype != tensor.dtype:  # rounded ones would go on to other bits
                raise ValueError(
                    f"it is damaged: {name!r} is {tensors[name].dtype} there and {tensor.dtype} here; "
                    "remove it to begin anew"
                )
            tensor.copy_(tensors[name])


def _fused(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model as torch.compile makes it, once for each model that trains in this process."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
    fused: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False)
    return fused


def draw(count: int, recipe: Recipe, epoch: int) -> dict[str, Tensor]:
    """The order, cuts and flips of an epoch, which depend on the seed and the epoch alone."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
    corners = 2 * recipe.padding + 1
    return {
        "order": torch.randperm(count, generator=generator),
        "top": torch.randint(corners, (count,), generator=generator),
        "left": torch.randint(corners, (count,), generator=generator),
        "flip": torch.randint(2, (count,), generator=generator),
    }


def descend(
    parameters: list[Tensor],
    gradients: list[Tensor],
    momenta: list[Tensor],
    *,
    rate: Tensor,
    momentum: float,
    decay: float,
) -> None:
    """SGD as in torch.optim, in place, in a few fused kernels; the rate is a tensor that a graph reads anew."""
    gradients = [_laid_out_as(gradient, like) for gradient, like in zip(gradients, parameters, strict=True)]
    if decay:
        torch._foreach_add_(gradients, parameters, alpha=decay)
    torch._foreach_mul_(momenta, momentum)
    torch._foreach_add_(momenta, gradients)
    torch._foreach_sub_(parameters, torch._foreach_mul(momenta, rate))


def _laid_out_as(gradient: Tensor, parameter: Tensor) -> Tensor:
    """The gradient with the strides of its parameter: one odd pair would make the fused kernels go one by one."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _free_of_decay(model: nn.Module) -> set[str]:
    """The parameters of a GODIN head's similarity, which its authors do not decay."""
    heads = [name for name, module in model.named_modules() if isinstance(module, GodinHead)]
    return {f"{name}.{part}" for name in heads for part in ("weight", "bias")}


def capture(step: Step) -> Callable[[], None]:
    """The step as one CUDA graph; the model and all counters are as before, only kernels were chosen."""
    before = {name: tensor.clone() for name, tensor in step.tensors().items()}
    step.begin(0)
    # The same side stream for warm-up and capture: libraries keep handles and workspaces by stream.
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream(step.labels.device)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            step()
    current.wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    step.restore(before)
    step.begin(0)
    return graph.replay
