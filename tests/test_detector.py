"""Detector: two branches, one pass, nothing left on the model, and bad input."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator

import models
import pytest
import torch
from torch import Tensor, nn

import davis

FIT = [(models.photos(40, seed), torch.arange(40) % models.CLASSES) for seed in (1, 2)]
TEST = models.photos(7, seed=3)


def fitted(spec: str, model: nn.Module | None = None) -> davis.Detector:
    return davis.Detector(model or models.small_net(), spec).fit(FIT)


@pytest.mark.parametrize("spec", models.EVERY_SPEC + models.PIXEL_SPECS)
def test_logits_are_the_models_own_and_the_model_is_left_alone(spec: str) -> None:
    model = models.small_net().train()
    before = copy.deepcopy(model.state_dict())
    detector = fitted(spec, model)
    output = detector(TEST)
    assert model.training
    assert model.norm.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(output.logits, model.eval()(TEST))
    assert output.score.dtype == torch.float64
    assert output.score.shape == (7,)
    assert not output.score.requires_grad
    assert output.score.isfinite().all()
    assert output.is_ood is None


@pytest.mark.parametrize("spec", models.EVERY_SPEC)
def test_scores_from_activations_equal_those_from_images(spec: str) -> None:
    detector = fitted(spec)
    activations = detector.backbone(TEST, statistics=detector.reads)
    assert torch.equal(detector.score(activations), detector(TEST).score)


@pytest.mark.parametrize("spec", models.EVERY_SPEC + models.PIXEL_SPECS)
def test_an_image_scores_the_same_alone(spec: str) -> None:
    for model, rtol in ((models.small_net(), 1e-5), (models.small_net().double(), 1e-9)):
        detector = fitted(spec, model)
        alone = torch.cat([detector(image[None]).score for image in TEST])
        torch.testing.assert_close(alone, detector(TEST).score, rtol=rtol, atol=rtol)


def test_many_are_fitted_in_one_pass() -> None:
    passes = 0

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal passes
        passes += 1
        yield from FIT

    together = davis.fit_all(models.small_net(), models.EVERY_SPEC, batches())
    assert passes == 1
    for detector in together:
        assert detector.images_seen == 80
        assert torch.equal(detector(TEST).score, fitted(detector.spec)(TEST).score)


def test_no_pass_where_no_stage_learns() -> None:
    def untouchable() -> Iterator[Tensor]:
        raise AssertionError("the data were read")
        yield TEST

    detector = davis.Detector(models.small_net(), "max + scale(p=85) + energy").fit(untouchable())
    assert detector.is_fitted


def test_a_detector_is_not_changed_by_another_on_the_same_model() -> None:
    model = models.small_net()
    first = fitted("max + react(p=80) + energy", model)
    before = first(TEST).score
    davis.Detector(model, "react(p=10) + energy").fit([models.photos(30, 9)])(TEST)
    assert torch.equal(first(TEST).score, before)


def test_new_weights_are_seen_at_once() -> None:
    model = models.small_net()
    detector = davis.Detector(model, "max + energy")
    before = detector(TEST)
    with torch.no_grad():
        model.head.weight.mul_(2)
    after = detector(TEST)
    assert torch.equal(after.logits, model(TEST))
    assert not torch.equal(after.score, before.score)


def test_calibration_accepts_the_share_it_says() -> None:
    detector = fitted("max + energy").calibrate([models.photos(999, 5)], tpr=0.9)
    assert detector.calibration is not None
    assert detector.calibration.count == 999
    rejected = detector(models.photos(999, 5)).is_ood
    assert rejected is not None
    assert rejected.sum() == 99  # strictly below the 100th smallest of 999
    assert detector.threshold == detector(models.photos(999, 5)).score.sort().values[99].item()


def test_fitting_anew_forgets_the_threshold() -> None:
    detector = fitted("react(p=80) + energy").calibrate([models.photos(30, 5)], tpr=0.9)
    assert detector.fit(FIT).threshold is None


def test_under_inference_mode_and_in_a_grad_context() -> None:
    for spec in ("max + energy", *models.PIXEL_SPECS):
        detector = fitted(spec)
        plain = detector(TEST).score
        with torch.inference_mode():
            assert torch.equal(detector(TEST.clone()).score, plain)
        with torch.enable_grad():
            assert torch.equal(detector(TEST.clone().requires_grad_()).score, plain)


def test_labels_matter_for_mahalanobis_only() -> None:
    unlabelled = [images for images, _ in FIT]
    for spec in ("caref", "cadref", "optfs", "mahalanobis"):
        without = davis.Detector(models.small_net(), spec).fit(unlabelled)(TEST).score
        assert torch.equal(fitted(spec)(TEST).score, without) == (spec != "mahalanobis")


def test_pixel_methods_need_images_and_data_that_can_be_read_twice() -> None:
    detector = fitted("odin + msp(t=1000)")
    with pytest.raises(ValueError, match="call the detector on images"):
        detector.score(detector.backbone(TEST))
    with pytest.raises(ValueError, match="list or a DataLoader"):
        davis.Detector(models.small_net(), "react(p=80) + adascale_a").fit(batch for batch in FIT)
    assert davis.Detector(models.small_net(), "adascale_a").fit(batch for batch in FIT).is_fitted


def test_unfitted_says_so() -> None:
    with pytest.raises(davis.NotFittedError, match=r"mean \+ knn' is not fitted \(knn learns from data\); call fit"):
        davis.Detector(models.small_net(), "knn")(TEST)


def test_repr_and_copy() -> None:
    detector = fitted("max + react(p=80) + energy")
    assert repr(detector) == "Detector(SmallNet, 'max + react(p=80) + energy', fitted, threshold=None)"
    for again in (copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
        assert torch.equal(again(TEST).score, detector(TEST).score)


def test_as_a_module_it_holds_the_stages_only() -> None:
    detector = fitted("max + react(p=80) + energy")
    assert list(detector.state_dict()) == ["branches.0.sequence.1.clip"]
    assert not list(detector.parameters())
    buffer = io.BytesIO()
    torch.save(detector.state_dict(), buffer)


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.full((3, 3, 12, 12), torch.nan), "NaN or inf in 3 of 3 rows"),
        (torch.cat([TEST[:2], TEST[:1] * torch.inf]), "NaN or inf in 1 of 3 rows"),
        (torch.zeros(0, 3, 12, 12), "at least one image"),
        (torch.zeros(3, dtype=torch.float32), "batch"),
        (torch.zeros(2, 4, 12, 12), "does not take images of shape"),
        (torch.zeros(2, 3, 12, 12, dtype=torch.uint8), "convert to float"),
        ([1, 2, 3], "must be a tensor"),
    ],
)
def test_images_that_cannot_be_scored(images: Tensor, says: str) -> None:
    for spec in ("max + energy", "odin + msp"):
        detector = davis.Detector(models.small_net(), spec)
        with pytest.raises((ValueError, TypeError), match=says) as error:
            detector(images)
        assert "\n" not in str(error.value)


def test_empty_data() -> None:
    with pytest.raises(ValueError, match="no images were seen"):
        davis.Detector(models.small_net(), "knn").fit([])
    with pytest.raises(ValueError, match="no images were seen"):
        davis.Detector(models.small_net(), "adascale_a").fit([])
    with pytest.raises(ValueError, match="no images were seen"):
        davis.Detector(models.small_net(), "energy").calibrate([])
    with pytest.raises(ValueError, match="19 are needed"):
        davis.Detector(models.small_net(), "energy").calibrate([models.photos(18)])


def test_k_larger_than_the_bank() -> None:
    for spec in ("knn(k=81)", "nnguide(k=81)", "combood(k=81)"):
        with pytest.raises(ValueError, match=r"k=81 neighbours of 80 training rows; use a smaller k"):
            fitted(spec)


def test_labels_that_do_not_fit() -> None:
    images = models.photos(4)
    bad = [
        (torch.tensor([0, 1, 2, 5]), "0..4"),
        (torch.tensor([0, -1, 2, 3]), "0..4"),
        (torch.tensor([0.0, 1.0, 2.0, 3.0]), "integer"),
        (torch.tensor([0, 1, 2]), "one per image"),
    ]
    for labels, says in bad:
        with pytest.raises(ValueError, match=says):
            davis.Detector(models.small_net(), "mahalanobis").fit([(images, labels)])
    with pytest.raises(ValueError, match="for all or for none"):
        davis.Detector(models.small_net(), "mahalanobis").fit([(images, torch.zeros(4, dtype=torch.int64)), images])


@pytest.mark.parametrize("spec", models.EVERY_SPEC)
def test_a_class_never_seen(spec: str) -> None:
    data = [(models.photos(40, 1), torch.zeros(40, dtype=torch.int64))]
    assert davis.Detector(models.small_net(), spec).fit(data)(TEST).score.isfinite().all()


@pytest.mark.parametrize("spec", models.EVERY_SPEC)
@pytest.mark.parametrize("value", [0.0, 1.0, -1.0])
def test_constant_features(spec: str, value: float) -> None:
    constant = torch.full((60, models.CHANNELS, 3, 3), value)
    model = models.map_net()
    if "optfs" in spec:
        with pytest.raises(ValueError, match="equal"):
            davis.Detector(model, spec).fit([constant])
        return
    detector = davis.Detector(model, spec).fit([constant])
    for images in (constant[:2], models.maps(4), -models.maps(4)):
        assert detector(images).score.isfinite().all()


@pytest.mark.filterwarnings("ignore:the last map")
@pytest.mark.parametrize("spec", models.EVERY_SPEC)
def test_zero_and_negative_rows_and_small_maps(spec: str) -> None:
    detector = davis.Detector(models.map_net(), spec).fit([models.maps(60, 1)])
    rows = torch.cat([torch.zeros(1, models.CHANNELS, 3, 3), -models.maps(2, 2), models.maps(1, 3)])
    assert detector(rows).score.isfinite().all()
    single = davis.Detector(models.map_net(), spec)
    if "optfs" in spec and "entropy" in spec:
        return
    single.fit([models.maps(60, 1, size=1)])
    assert single(models.maps(4, 2, size=1)).score.isfinite().all()


@pytest.mark.parametrize("spec", [*models.EVERY_SPEC, *models.PIXEL_SPECS])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(spec: str, dtype: torch.dtype) -> None:
    model = models.small_net().to(dtype)
    detector = davis.Detector(model, spec).fit(FIT)
    output = detector(TEST)
    assert output.logits.dtype == dtype
    assert output.score.dtype == torch.float64
    assert output.score.isfinite().all()
    assert detector.features(TEST).dtype == torch.float32


@pytest.mark.parametrize("spec", models.EVERY_SPEC)
def test_channels_last(spec: str) -> None:
    model = models.small_net()
    detector = fitted(spec, model)
    plain = detector(TEST).score
    model.to(memory_format=torch.channels_last)
    last = detector(TEST.to(memory_format=torch.channels_last)).score
    torch.testing.assert_close(last, plain, rtol=1e-4, atol=1e-5)


def test_an_overflow_names_the_stage() -> None:
    model = models.map_net().double()
    detector = davis.Detector(model, "ash_s(p=96) + energy")
    flat = torch.ones(2, models.CHANNELS, 3, 3, dtype=torch.float64)
    flat[1, 0] = 1 + 1e-9  # one channel kept of 24: the ratio is 24
    assert detector(flat).score.isfinite().all()
    wide = models.map_net(channels=1000).double()
    with pytest.raises(ValueError, match=r"ash_s gave NaN or infinity for 2 of 2 images \(first: row 0\)"):
        davis.Detector(wide, "ash_s(p=99.9) + energy")(torch.ones(2, 1000, 3, 3, dtype=torch.float64))


def test_saturated_softmax_keeps_an_order() -> None:
    """In float16 or float32 most of these would tie at 1."""
    model = models.map_net()
    with torch.no_grad():
        model.head.weight.mul_(200)
    images = models.maps(200, 4).half().float()
    score = davis.Detector(model, "msp")(images).score
    single = model(images).softmax(1).amax(1)
    assert len(score.unique()) > len(single.unique())


def test_wrong_kinds_of_arguments() -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        davis.Detector("resnet18", "energy")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="cannot read '3'"):
        davis.Detector(models.small_net(), 3)
    with pytest.raises(TypeError, match="a batch must be"):
        davis.Detector(models.small_net(), "knn").fit([{"images": TEST}])


def test_precision_and_state_follow_the_data_not_the_module() -> None:
    for spec in models.EVERY_SPEC:
        detector = fitted(spec)
        expected = detector(TEST).score
        assert torch.equal(detector.half()(TEST).score, expected)
        again = davis.Detector(models.small_net(), spec)
        again.load_state_dict(detector.state_dict())
        assert torch.equal(again(TEST).score, expected)


def test_images_are_no_activations() -> None:
    detector = davis.Detector(models.small_net(), "max + energy")
    with pytest.raises(TypeError, match=r"score takes Activations, .* for images call the detector itself"):
        detector.score(models.photos(2))  # type: ignore[arg-type]


def test_preprocessing_is_kept_as_plain_values() -> None:
    detector = davis.Detector(models.small_net(), "energy")
    assert detector.preprocessing is None
    detector.preprocessing = davis.data.Preprocessing(size=32, resize=40)
    values = detector.preprocessing
    assert values == davis.data.Preprocessing(size=32, resize=40).to_dict()
    detector.preprocessing = values
    assert detector.preprocessing == values
    with pytest.raises(ValueError, match="preprocessing lacks 'aspect'"):
        detector.preprocessing = {"size": 32}
