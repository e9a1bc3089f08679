"""Features of a pretrained network in place of trainings: what heads fitted to them say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dada
from dada import Policy, models
from dada.config import NAMED_BASES, Base, SearchConfig, search_config
from dada.data import Split, TensorPart
from dada.policy_search.lookahead import with_fewer_steps
from dada.policy_search.lookahead.features import SENT, FeatureRuns, Features, Noise, fit_head
from dada.policy_search.lookahead.runs import BranchedRuns
from dada.policy_search.measuring import measure
from dada.training.scores import scores_of_logits
from quick import QUICK_LOOKAHEAD, search_job

CPU = torch.device("cpu")
LOOKAHEAD = replace(
    QUICK_LOOKAHEAD,
    seconds=60.0,
    most_runs=2,
    most_policy_runs=2,
    views=1,
    reading="calibrated_loss",
)
NET = "torchvision:shufflenet_v2_x0_5"
SIDE = 32


def pictures(count: int, *, dark: bool, seed: int) -> TensorPart:
    """Two textures, told apart by the direction of their stripes; some sets are dark."""
    noise = torch.Generator().manual_seed(seed)
    labels_N = torch.arange(count) % 2
    ramp = torch.arange(SIDE)
    stripes = ((ramp // 4) % 2 * 120 + 60).float()
    both = torch.stack([stripes.expand(SIDE, SIDE), stripes.unsqueeze(1).expand(SIDE, SIDE)])
    images = both[labels_N].unsqueeze(1).repeat(1, 3, 1, 1)
    images = images + 40 * torch.randn(images.shape, generator=noise)
    images = images * (0.25 if dark else 1.0)
    return TensorPart(images.clamp(0, 255).to(torch.uint8), labels_N)


@pytest.fixture
def split() -> Split:
    train, val = pictures(48, dark=False, seed=0), pictures(64, dark=True, seed=1)
    return Split(train=train, val=val, classes=("across", "along"), name="stripes")


def runs_of(split: Split) -> FeatureRuns:
    network = models.build(NET, 2, 3, (SIDE, SIDE), seed=0).eval()
    job = search_job(split, network, SearchConfig(), device=CPU)
    found = FeatureRuns.of(replace(job, pretrained=True))
    assert found is not None
    return found


def test_features_are_what_the_head_is_given(split):
    network = models.build(NET, 2, 3, (SIDE, SIDE), seed=0).eval()
    features = Features(network, split, CPU)
    found_NF, labels_N = features(split.val)
    assert torch.equal(labels_N, split.val.labels_N) and found_NF.shape == (64, 1024)
    with torch.no_grad():
        logits_NC = network(features.normalise(split.val.images_NCHW))
        assert torch.allclose(network.fc(found_NF), logits_NC, atol=1e-5)


def test_a_head_is_where_its_objective_is_lowest():
    noise = torch.Generator().manual_seed(0)
    labels_N = torch.arange(90) % 3
    features_NF = torch.randn(90, 5, generator=noise) + labels_N.unsqueeze(1)
    head = fit_head(features_NF, labels_N, 3)
    assert scores_of_logits(head(features_NF), labels_N, 3).accuracy > 0.5
    shifted = fit_head(3 * features_NF - 7, labels_N, 3)  # features of another scale
    assert torch.allclose(shifted(3 * features_NF - 7), head(features_NF), atol=1e-2)


def test_what_makes_training_images_like_validation_images_is_seen(split):
    """The validation images are dark: Brightness helps, and turning images around does not."""
    darker = Policy.from_rows([[("Brightness", 1.0, (0.0, 0.2))]], name="darker")
    arms = {"none": Policy.load("none"), "darker": darker}
    seen = runs_of(split).losses(arms, 2, file="ends.json")
    assert max(seen.loss["darker"]) < min(seen.loss["none"])
    assert len(seen.balanced_accuracy) == 2


def test_arms_share_their_random_numbers(split):
    rotate = Policy.from_rows([[("Rotate", 0.5, (0.0, 1.0))]], name="one")
    seen = runs_of(split).losses({"one": rotate, "two": rotate}, 1, file="ends.json")
    assert seen.loss["one"] == seen.loss["two"]


def test_arms_share_what_is_done_to_every_image_however_much_they_draw(split):
    """Three policies that do nothing, with no operation, one and two: the same parts are cut."""
    never = ("Rotate", 0.0, (0.0, 1.0))
    arms = {str(n): Policy.from_rows([[never] * n], name=str(n)) for n in (1, 2)}
    runs = runs_of(split)
    runs = replace(runs, settings=replace(runs.settings, views=2), base=NAMED_BASES["photo"])
    seen = runs.losses({"0": Policy.load("none"), **arms}, 1, file="ends.json")
    assert seen.loss["0"] == seen.loss["1"] == seen.loss["2"]


def test_what_is_known_is_not_sent_again(split):
    network = models.build(NET, 2, 3, (SIDE, SIDE), seed=0).eval()
    features, sent = Features(network, split, CPU), []
    network.register_forward_pre_hook(lambda layer, given: sent.append(len(given[0])))
    clean_NF, _ = features(split.train)
    half = Policy.from_rows([[("Invert", 0.5, 0.0)]])
    views_NF, _ = features(split.train, Base(), half, Noise.of(CPU, 0, 0))
    same_N = (clean_NF == views_NF).all(1)
    images = len(split.train)
    assert max(sent) == SENT["cpu"] < images, "a few at once"
    assert 0 < sum(sent) - images == int((~same_N).sum()) < images
    features.known.clear()
    again_NF, _ = features(split.train, Base(), half, Noise.of(CPU, 0, 0))
    assert torch.allclose(again_NF, views_NF, atol=1e-4)


def test_photographs_are_shrunk_and_few_are_read_on(split):
    settings = replace(LOOKAHEAD, features_side=16, features_validation=10)
    network = models.build(NET, 2, 3, (SIDE, SIDE), seed=0)
    job = replace(search_job(split, network, SearchConfig(), device=CPU), pretrained=True)
    runs, whole = (FeatureRuns.of(replace(job, lookahead=each)) for each in (settings, LOOKAHEAD))
    assert runs.read_on.image_size == (16, 16) and len(runs.read_on.val) == 10
    assert runs.read_on.val.labels_N.bincount().tolist() == [5, 5]
    assert whole.read_on.image_size == (SIDE, SIDE) and len(whole.read_on.val) == 64
    assert runs.run_seconds(15) < whole.run_seconds(15)


def test_a_network_that_is_bound_to_its_size_is_built_for_a_smaller_one(split, tmp_path: Path):
    """A transformer: its weights are those it has, with other position embeddings."""
    pytest.importorskip("timm")
    name = "timm:vit_tiny_patch16_224"
    network = models.build(name, 2, 3, (SIDE, SIDE), seed=0)
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    _, weights = models.weights.from_file(tmp_path / "net.safetensors", name)

    def build_for(size: tuple[int, int]) -> Callable[[int], nn.Module]:
        return models.untrained(name, 2, 3, size, weights)

    settings = replace(LOOKAHEAD, features_side=16)
    job = replace(search_job(split, network, SearchConfig(), device=CPU), pretrained=True)
    job = replace(job, lookahead=settings, build_for=build_for)
    runs = FeatureRuns.of(job)
    assert runs.read_on.image_size == (16, 16)
    small = runs.build(1)
    assert small.pos_embed.shape[1] < network.pos_embed.shape[1]
    assert torch.equal(small.blocks[0].mlp.fc1.weight, network.blocks[0].mlp.fc1.weight)
    # A user's own cannot be built anew, and 12 pixels are less than a patch.
    assert FeatureRuns.of(replace(job, build_for=None)).read_on.image_size == (SIDE, SIDE)
    odd = replace(job, lookahead=replace(settings, features_side=12))
    assert FeatureRuns.of(odd).read_on.image_size == (SIDE, SIDE)
    train, val = ((part.images_NCHW, part.labels_N) for part in (split.train, split.val))
    how = {"model": name, "weights": tmp_path / "net.safetensors", "device": "cpu"}
    policy = dada.search(train, val, lookahead=settings, **how).policy
    assert policy.provenance["lookahead"]["features"] is True


def test_a_network_without_a_head_or_without_training_has_no_such_runs(split):
    bare = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, 2))
    job = search_job(split, bare, SearchConfig(), device=CPU)
    assert FeatureRuns.of(replace(job, pretrained=True)) is None
    built = models.build(NET, 2, 3, (SIDE, SIDE), seed=0)
    assert FeatureRuns.of(replace(job, network=built)) is None


def test_a_pretrained_search_reads_features_and_is_resumed(tmp_path: Path, monkeypatch):
    network = models.build(NET, 2, 3, (SIDE, SIDE), seed=3)
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    # So many that there is a signal: else no whole policies are read.
    parts = pictures(200, dark=False, seed=0), pictures(200, dark=True, seed=1)
    train, val = ((part.images_NCHW, part.labels_N) for part in parts)
    how = {"model": NET, "weights": tmp_path / "net.safetensors", "device": "cpu", "epochs": 1}
    how |= {"batch_size": 16, "lookahead": replace(LOOKAHEAD, views=2), "for_epochs": 1000}
    # Trainings would take too long, so whole policies are read off the features, too.
    monkeypatch.setattr(BranchedRuns, "affordable", lambda *given: 0)
    policy = dada.search(train, val, out=tmp_path / "whole", **how).policy
    facts = policy.provenance["lookahead"]
    assert facts["features"] is True and "stand_in" not in facts
    assert (
        facts["times_as_long"] == 1 and facts["for_epochs"] == 1000
    )  # it is said that nothing was
    assert {"none", "trivialaugment"} < set(facts["policy_loss"])
    assert policy.provenance["signal"]["word"] in ("clear", "weak")

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dada.search(train, val, out=tmp_path / "cut", on_lookahead=stop, **how)
    dada.search(train, val, out=tmp_path / "cut", resume=True, **how)
    written = [(tmp_path / name / "policy.json").read_bytes() for name in ("whole", "cut")]
    assert written[0] == written[1]


def test_there_are_no_steps_before_features_are_read(split):
    network = models.build(NET, 2, 3, (SIDE, SIDE), seed=0)
    job = search_job(split, network, SearchConfig(), device=CPU)
    job = replace(job, pretrained=True, lookahead=LOOKAHEAD)
    assert job.measures and not with_fewer_steps(job).measures
    longer = replace(job, config=SearchConfig(lookahead=LOOKAHEAD.seconds))
    assert not with_fewer_steps(longer).measures
    paper = replace(job, config=search_config("paper", lookahead=LOOKAHEAD.seconds))
    assert with_fewer_steps(paper).measures
    asked = replace(job, config=SearchConfig(epochs=1))  # by who wants steps
    assert with_fewer_steps(asked).measures
    assert measure(with_fewer_steps(job)).history == []
