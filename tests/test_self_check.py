"""The self-check on models that it cannot check, and on maps where pooling cannot matter."""

from __future__ import annotations

import warnings

import models
import pytest
import torch
from torch import Tensor, nn

from davis.backbone import Backbone
from davis.self_check import unlike


def net(weight: float = 1.0, size: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, size), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    ).eval()
    with torch.no_grad():
        model[4].weight.mul_(weight)
    return model


def images(batch: int = 3) -> Tensor:
    return torch.randn((batch, 3, 8, 8), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("options", [{}, {"tap": "1", "head": "4"}, {"tap": "0", "head": "4"}])
@pytest.mark.parametrize("batch", [1, 3])
def test_constant_logits_are_refused(options, batch):
    with pytest.raises(ValueError, match="Sequential gives the same logits for unlike images") as caught:
        Backbone(net(weight=0.0), **options)(images(batch))
    assert "\n" not in str(caught.value)
    assert "load trained weights" in str(caught.value)


def test_dead_channels_are_refused():
    model = net()
    with torch.no_grad():
        model[0].bias.fill_(-1e3)  # no ReLU ever opens
    with pytest.raises(ValueError, match="gives the same logits"):
        Backbone(model)(images())
    with torch.no_grad():
        model[0].bias.fill_(1e4)  # every image drowns in the bias
        model[4].bias.zero_()
    with pytest.raises(ValueError, match="gives the same logits"):
        Backbone(model)(images())


def test_a_bias_that_hides_the_features_is_refused():
    with pytest.raises(ValueError, match="gives the same logits"):
        Backbone(net(weight=1e-6))(images())  # any tap would pass: its bias is all there is


def test_logits_may_be_small_and_images_alike():
    small = net(weight=1e-6)
    nn.init.zeros_(small[4].bias)
    Backbone(small)(images())
    Backbone(net())(torch.zeros(4, 3, 8, 8))  # alike themselves, so unlike ones are made
    Backbone(net())(images(1))


def test_the_first_batch_costs_one_image_more():
    model, calls = net(), []
    Backbone(model, tap="1", head="4")(images())
    model.register_forward_hook(lambda _, given, __: calls.append(len(given[0])))
    backbone = Backbone(model, tap="1", head="4")
    backbone(images())
    assert calls == [3, 1]
    backbone(images())
    assert calls == [3, 1, 3]
    Backbone(model, tap="1", head="4")(images(1))
    assert calls == [3, 1, 3, 1, 1, 3]  # itself, made-up images, itself among them


@pytest.mark.parametrize("batch", [1, 4])
def test_a_model_that_judges_by_company_is_refused(batch):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    ).eval()
    with pytest.raises(ValueError, match="Sequential judges an image by the others in its batch") as caught:
        Backbone(model)(images(batch))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("last", "kind"), [(nn.Softmax(1), "probabilities"), (nn.LogSoftmax(1), "log-probabilities")])
def test_a_named_head_that_ends_in_probabilities_is_refused(last, kind):
    plain = net()
    model = nn.Sequential(*plain[:4], nn.Sequential(plain[4], last))
    with pytest.raises(ValueError, match=f"Sequential returns {kind}, not logits"):
        Backbone(model, tap="1", head="4")(images())


class Whitens(nn.Module):
    """Normalises the images that it is given where they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.body = net()

    def forward(self, images: Tensor) -> Tensor:
        images -= 0.5
        images /= 0.2
        return self.body(images)


@pytest.mark.parametrize("inference", [False, True])
def test_a_model_that_writes_on_its_images_does_not_change_ours(inference):
    given, model = images(), Whitens().eval()
    backbone = Backbone(model)
    with torch.inference_mode(inference):
        mine = given.clone()
        wanted = model(given.clone())
        for _ in range(2):
            torch.testing.assert_close(backbone(mine).logits, wanted)
        torch.testing.assert_close(backbone.look(mine)[1], wanted)
        assert torch.equal(mine, given)
    assert backbone(given, gradients=True).logits.shape == (3, 4)


def test_weights_that_are_not_there():
    with pytest.raises(ValueError, match="on the meta device; load them first"):
        Backbone(net().to("meta"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it compiles first
def test_compiled_layers_are_named():
    model = net()
    model[1].compile()
    with pytest.raises(ValueError, match=r"^1 is compiled, and its layers cannot be watched"):
        Backbone(model)(images())


def test_broken_weights_are_called_so():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="gives NaN or infinity for noise"):
        Backbone(model)(images())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tap": 3, "head": "4"}, "tap= takes the name of a module"),
        ({"tap": "1", "head": ""}, "head='' is no module"),
        ({"tap": "1", "head": "0"}, "do not meet|the head takes no features"),
        ({"tap": "1", "head": "4", "after": lambda value: None}, "after= must return a tensor; it returned a NoneType"),
        ({"tap": "1", "head": "4", "neck": lambda value: [value]}, "neck= must return a tensor; it returned a list"),
    ],
)
def test_odd_arguments_get_one_line(options, says):
    with pytest.raises((ValueError, TypeError), match=says) as caught:
        Backbone(net(), **options)(images())
    assert "\n" not in str(caught.value)


def test_odd_outputs_get_one_line():
    class Odd(nn.Module):
        def __init__(self, output):
            super().__init__()
            self.body, self.output = net(), output

        def forward(self, images: Tensor) -> object:
            return self.output(self.body(images))

    for output, says in (
        (lambda logits: {1: logits, "a": logits}, "a dict with"),
        (lambda logits: torch.complex(logits, logits), "real floating-point numbers"),
    ):
        with pytest.raises((ValueError, TypeError), match=says):
            Backbone(Odd(output), tap="body.1", head="body.4")(images())


def test_made_up_images_are_unlike():
    made = unlike(torch.zeros(8, 3, 8, 8, dtype=torch.float64))
    assert made.shape == (8, 3, 8, 8)
    assert made.dtype == torch.float64
    statistics = torch.stack([made.flatten(1).mean(1), made.flatten(1).std(1)], 1)
    assert torch.cdist(statistics, statistics).fill_diagonal_(9).min() > 0.05
    assert torch.equal(made, unlike(torch.ones(8, 3, 8, 8, dtype=torch.float64)))


def test_a_map_of_one_position_is_said_once():
    backbone = Backbone(net(size=8))
    with pytest.warns(UserWarning, match=r"Sequential has one position for images of shape \(3, 8, 8\)") as caught:
        backbone(images())
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backbone(images())
        backbone(torch.randn(2, 3, 9, 9))
        Backbone(net())(images())


def test_a_model_that_draws_at_random_is_told_from_one_that_looks_around() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = models.small_net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x + torch.randn_like(x))

    with pytest.raises(ValueError, match="gives the same image other logits each time"):
        Backbone(Noisy().eval())(models.photos(4))
