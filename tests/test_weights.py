"""Trained weights: files, published ones, and fitting them. Nothing is downloaded here."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import dada
from dada import models
from dada.models.fitting import HEAD_DEVIATION, fit_weights, head_of
from dada.models.weights import Published, Weights, from_file, published
from dada.terminal.commands import main
from dada.trials.cost import forward_work
from hub_stand_in import HubStandIn

OWN = "model.safetensors"  # as the hub has it
NET = "torchvision:shufflenet_v2_x0_5"  # the smallest with a stem, BatchNorm and a head
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE = 32


def network(name: str = NET, classes: int = 5, channels: int = 3, seed: int = 0) -> nn.Module:
    return models.build(name, classes, channels, (SIDE, SIDE), seed=seed)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a network of five classes."""
    path = tmp_path_factory.mktemp("weights") / "five.safetensors"
    save_file(network(seed=7).state_dict(), path)
    return path


@pytest.fixture(scope="module")
def photos() -> tuple[Tensor, Tensor]:
    noise = torch.Generator().manual_seed(0)
    images = torch.randint(256, (32, 3, SIDE, SIDE), generator=noise, dtype=torch.uint8)
    return images, torch.arange(32) % 2


@pytest.fixture
def no_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was asked of the network; nothing answers."""
    asked: list[str] = []

    def refuse(request: Any, **_: Any) -> None:
        asked.append(request.full_url)
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    return asked


# --- files --------------------------------------------------------------------------------------


def test_a_file_names_network_and_normalisation(file: Path) -> None:
    name, weights = from_file(file, NET)
    assert name == NET and weights.source == str(file)
    assert weights.mean_std == (MEAN, STD)
    assert weights.normalisation(3) == (MEAN, STD)
    grey_mean, grey_std = weights.normalisation(1) or ((), ())
    assert grey_mean == pytest.approx([sum(MEAN) / 3]) and grey_std == pytest.approx([sum(STD) / 3])
    with pytest.raises(ValueError, match="give `model` too"):
        from_file(file, None)
    assert from_file(file, "wrn10_1")[1].normalisation(3) is None, "nobody says how"


@pytest.mark.parametrize("inside", [None, "state_dict", "model"])
def test_torch_files_are_read(file: Path, tmp_path: Path, inside: str | None) -> None:
    _, expected = from_file(file, NET)
    state = {f"module.{name}": each for name, each in expected.tensors.items()}
    torch.save(state if inside is None else {inside: state, "epoch": 3}, tmp_path / "net.pth")
    _, weights = from_file(tmp_path / "net.pth", NET)
    assert weights.digest == expected.digest


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("exploded"),))


def broken_files(folder: Path, file: Path) -> dict[str, tuple[Path, str]]:
    whole = file.read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    torch.save({"weight": torch.zeros(2)}, folder / "whole.pth")
    (folder / "cut.pth").write_bytes((folder / "whole.pth").read_bytes()[:200])
    (folder / "code.pth").write_bytes(pickle.dumps({"state_dict": Bomb()}, protocol=2))
    torch.save({"weight": torch.zeros(2), "net": Bomb()}, folder / "code-in-zip.pth")
    torch.save([1, 2], folder / "list.pth")
    torch.save({"weight": torch.zeros(2), "lr": 0.1}, folder / "mixed.pth")
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "text.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "cut-header.safetensors").write_bytes(whole[:40])
    (folder / "stub.safetensors").write_bytes(whole[:7])
    flipped = whole.replace(b'"dtype":"F32"', b'"dtype":"F99"', 1)
    (folder / "flipped.safetensors").write_bytes(flipped)
    legacy = folder / "legacy.pth"
    torch.save({"weight": torch.zeros(99)}, legacy, _use_new_zipfile_serialization=False)
    (folder / "cut-legacy.pth").write_bytes(legacy.read_bytes()[:-9])
    (folder / "cut-legacy-code.pth").write_bytes(legacy.read_bytes()[:300])
    (folder / "words.pth").write_bytes(b"PK and other words")
    np.savez(folder / "arrays.pth.npz", weight=np.zeros(3))
    for protocol in (0, 1, 4):
        content = pickle.dumps({"state_dict": Bomb()}, protocol=protocol)
        (folder / f"code-{protocol}.safetensors").write_bytes(content)
    (folder / "import.safetensors").write_bytes(pickle.dumps(Bomb(), protocol=0))
    no_weights = "neither a safetensors file nor one of torch.save; save the network's state_dict()"
    a_pickle = "a pickle, which may hold code and is not read; save the network's state_dict()"
    again = "copy or download it again"
    return {
        "absent": (folder / "none.pth", "no file"),
        "truncated": (folder / "cut.safetensors", f": cut off or damaged; {again}"),
        "cut-header": (folder / "cut-header.safetensors", f": cut off; {again}"),
        "stub": (folder / "stub.safetensors", no_weights),
        "flipped": (folder / "flipped.safetensors", f": cut off or damaged; {again}"),
        "truncated-torch": (folder / "cut.pth", f": cut off or damaged; {again}"),
        "cut-legacy-code": (folder / "cut-legacy-code.pth", "is cut off or holds more .* not run"),
        "truncated-legacy": (folder / "cut-legacy.pth", f": cut off, damaged or .*; {again}"),
        "words": (folder / "words.pth", f": cut off or damaged; {again}"),
        "arrays": (folder / "arrays.pth.npz", ": cut off, damaged or not of torch.save"),
        "code": (folder / "code.pth", a_pickle),
        "code-0": (folder / "code-0.safetensors", a_pickle),
        "code-1": (folder / "code-1.safetensors", a_pickle),
        "code-4": (folder / "code-4.safetensors", a_pickle),
        "import": (folder / "import.safetensors", a_pickle),
        "code-in-zip": (folder / "code-in-zip.pth", ": it holds more than numbers, and a file's"),
        "list": (folder / "list.pth", "no weights by name"),
        "mixed": (folder / "mixed.pth", "'lr' is no tensor"),
        "empty": (folder / "empty.safetensors", f"an empty file; {again}"),
        "text": (folder / "text.safetensors", no_weights),
    }


KINDS = (
    *("absent", "truncated", "cut-header", "stub", "flipped", "truncated-torch"),
    *("truncated-legacy", "cut-legacy-code", "words", "arrays", "code", "code-0", "code-1"),
    *("code-4", "import", "code-in-zip", "list", "mixed", "empty", "text"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_file_is_one_line_and_nothing_is_run(
    kind: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path, words = broken_files(tmp_path, file)[kind]
    with pytest.raises(ValueError, match=words) as error:
        dada.train("digits", model=NET, weights=path, out=tmp_path / "run", device="cpu")
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists() and not (tmp_path / "exploded").exists()
    for internals in ("deserializ", "miniz", "inline_container", "PytorchStreamReader", "Header"):
        assert internals not in str(error.value)
    with pytest.raises(ValueError, match="^`backbone`.*" + words):
        dada.train("digits", model=f"retinanet:{NET}", backbone=path, device="cpu")


@pytest.mark.parametrize("length", [0x80, 0x280, 0x4B50, 0x71_7D])
def test_a_header_may_be_as_long_as_another_format_begins(length: int, tmp_path: Path) -> None:
    """Its length comes first: these begin like pickles and like a zip file."""
    about = {"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    header = json.dumps(about).encode().ljust(length)
    file = tmp_path / "net.safetensors"
    file.write_bytes(length.to_bytes(8, "little") + header + np.float32([1, 2]).tobytes())
    assert from_file(file, "small")[1].tensors["weight"].tolist() == [1, 2]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_finite_numbers_are_refused(
    number: float, file: Path, tmp_path: Path
) -> None:
    tensors = dict(from_file(file, NET)[1].tensors)
    for name in ("conv5.0.weight", "conv1.0.weight"):
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[-1] = number
    save_file(tensors, tmp_path / "net.safetensors")
    with pytest.raises(ValueError, match=r"net.safetensors: 'conv1.0.weight' holds NaN or inf"):
        dada.train("digits", model=NET, weights=tmp_path / "net.safetensors", device="cpu")


def test_numbers_of_a_few_bits_are_finite(tmp_path: Path) -> None:
    save_file({"weight": torch.ones(4).to(torch.float8_e5m2)}, tmp_path / "net.safetensors")
    assert from_file(tmp_path / "net.safetensors", "small")[1].tensors["weight"].numel() == 4


# --- fitting ------------------------------------------------------------------------------------


def test_everything_is_taken_where_the_classes_are_as_many(file: Path) -> None:
    _, weights = from_file(file, NET)
    model = models.build(NET, 5, 3, (SIDE, SIDE), seed=0, weights=weights)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, weights.tensors[name]), name


def test_a_head_of_other_classes_is_new_and_small(file: Path) -> None:
    _, weights = from_file(file, NET)
    model, other = (network(classes=3, seed=seed) for seed in (0, 1))
    note = fit_weights(model, weights, NET)
    fit_weights(other, weights, NET)
    assert "new head for 3 classes (was 5)" in note and "untrained" not in note
    assert torch.equal(model.conv1[0].weight, weights.tensors["conv1.0.weight"])
    assert float(model.fc.weight.detach().std()) == pytest.approx(HEAD_DEVIATION, rel=1e-3)
    assert model.fc.bias.abs().max() == 0
    assert not torch.equal(model.fc.weight, other.fc.weight), "the head depends on the seed"


def test_a_network_may_be_no_more_than_its_head() -> None:
    model = nn.Sequential()
    model.fc = nn.Linear(3, 2)
    tensors = {"fc.weight": torch.ones(2, 3), "fc.bias": torch.ones(2)}
    assert fit_weights(model, Weights(source="own", tensors=tensors), "own") == "weights own"
    assert model.fc.weight.min() == 1


@pytest.mark.parametrize("left", [(), ("fc.weight",), ("fc.bias",)])
def test_a_file_without_a_head_or_a_part_of_it(left: tuple[str, ...], file: Path) -> None:
    tensors = from_file(file, NET)[1].tensors
    kept = {k: v for k, v in tensors.items() if k in left or not k.startswith("fc.")}
    model = network()
    note = fit_weights(model, Weights(source="headless", tensors=kept), NET)
    if "fc.weight" in left:
        assert torch.equal(model.fc.weight, tensors["fc.weight"])
        assert "untrained: fc.bias" in note and "new head" not in note
    else:
        assert "new head for 5 classes (the file has none)" in note and "untrained" not in note
        assert float(model.fc.weight.detach().std()) == pytest.approx(HEAD_DEVIATION, rel=1e-3)
    if "fc.bias" not in left:
        assert model.fc.bias.abs().max() == 0


def test_all_of_some_tensors_that_did_not_fit_are_named(file: Path) -> None:
    tensors = from_file(file, NET)[1].tensors
    odd = {f"extra.{i}": torch.ones(1) for i in range(6)} | {"bad\x1b[2J": torch.ones(1)}
    note = fit_weights(network(), Weights(source="odd", tensors={**tensors, **odd}), NET)
    assert all(f"extra.{i}" in note for i in range(6)) and "in all" not in note
    assert note.isprintable()
    many = {f"extra.{i}": torch.ones(1) for i in range(99)}
    note = fit_weights(network(), Weights(source="odd", tensors={**tensors, **many}), NET)
    assert "extra.19" in note and "extra.20" not in note and "(99 in all)" in note


def test_grey_images_give_what_they_gave_in_colour(file: Path) -> None:
    _, weights = from_file(file, NET)
    grey = network(channels=1)
    note = fit_weights(grey, weights, NET)
    assert "conv1.0.weight summed over its colours for 1 channel(s)" in note
    colour = models.build(NET, 5, 3, (SIDE, SIDE), weights=weights).eval()
    images = torch.randn(2, 1, SIDE, SIDE)
    assert torch.allclose(grey.eval()(images), colour(images.expand(-1, 3, -1, -1)), atol=1e-4)


def test_what_did_not_fit_is_named(file: Path) -> None:
    _, weights = from_file(file, NET)
    tensors = {k: v for k, v in weights.tensors.items() if k != "conv5.1.bias"}
    odd = Weights(source="odd", tensors={**tensors, "extra.scale": torch.ones(3)})
    note = fit_weights(network(), odd, NET)
    assert "not in the file, so untrained: conv5.1.bias" in note
    assert "left out of the file: extra.scale" in note


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ("torchvision:shufflenet_v2_x1_0", "is (58,"),  # same names, other widths
        ("torchvision:squeezenet1_1", "of the network is there"),
        ("wrn10_1", "of the network is there"),
    ],
)
def test_weights_of_another_network_are_refused(file: Path, other: str, words: str) -> None:
    stranger = Weights(source="theirs", tensors=network(other).state_dict())
    with pytest.raises(ValueError, match=f"not those of model {NET!r}") as error:
        fit_weights(network(), stranger, NET)
    assert "\n" not in str(error.value)
    assert words in str(error.value) or " is (" in str(error.value)


def test_a_head_of_another_width_is_refused(file: Path) -> None:
    _, weights = from_file(file, NET)
    wide = {**weights.tensors, "fc.weight": torch.zeros(1000, 77)}
    with pytest.raises(ValueError, match=r"the head fc.weight is \(1000, 77\) there"):
        fit_weights(network(), Weights(source="wide", tensors=wide), NET)


@pytest.mark.parametrize(
    ("name", "head"),
    [
        (NET, "fc"),
        ("torchvision:mobilenet_v3_small", "classifier.3"),
        ("torchvision:squeezenet1_1", "classifier.1"),
        ("wrn10_1", "head"),
    ],
)
def test_heads_are_found(name: str, head: str) -> None:
    assert head_of(network(name)) == head


def test_positions_of_a_transformer_are_resized() -> None:
    pytest.importorskip("timm")
    name = "timm:test_vit"
    trained = models.build(name, 4, 3, (48, 48), seed=0)
    weights = Weights(source="vit", tensors=trained.state_dict())
    small = models.build(name, 4, 3, (32, 32), seed=1, weights=weights)
    assert small.pos_embed.shape != trained.pos_embed.shape
    assert torch.equal(small.blocks[0].mlp.fc1.weight, trained.blocks[0].mlp.fc1.weight)
    assert head_of(small) == "head"


# --- published ----------------------------------------------------------------------------------


def test_published_weights_are_said_before_they_are_fetched(no_connection: list[str]) -> None:
    said: list[str] = []
    one = published(NET)
    assert one.cached is None
    with pytest.raises(ValueError, match="no connection to https://") as error:
        one.read(said.append)
    assert said == [f"weights of {NET}: downloading {one.address}"]
    assert no_connection == [one.address]
    assert "\n" not in str(error.value) and "`weights`" in str(error.value)


def test_a_cached_file_is_used_without_asking(no_connection: list[str], file: Path) -> None:
    one = published(NET)
    place = Path(torch.hub.get_dir()) / "checkpoints" / Path(one.address).name
    place.parent.mkdir(parents=True)
    torch.save(network(seed=7).state_dict(), place)
    said: list[str] = []
    weights = one.read(said.append)
    assert not said and not no_connection
    assert weights.digest == from_file(file, NET)[1].digest and weights.mean_std == (MEAN, STD)


def test_a_damaged_download_is_to_be_deleted(hub: HubStandIn, file: Path) -> None:
    """What is named is what has to go: the cache of the hub holds a link to it, too."""
    one = Published(name=NET, address=f"{hub.address}/ann/net/resolve/main/{OWN}", hub="ann/net")
    hub.files["ann/net"] = {OWN: file.read_bytes()[:-9]}
    for _ in range(2):  # as it comes, and in the cache
        with pytest.raises(ValueError, match=r"^weights of .*: cut off or damaged; delete") as e:
            one.read(lambda line: None)
    assert "again" in str(e.value) and "copy" not in str(e.value)
    damaged = Path(re.findall(r": (/.*?): cut off", str(e.value))[0])
    assert damaged.is_file() and not damaged.is_symlink()
    damaged.unlink()
    hub.files["ann/net"] = {OWN: file.read_bytes()}
    assert one.read(lambda line: None).digest == from_file(file, NET)[1].digest


@pytest.mark.parametrize("repository", ["ann/net", None])
def test_a_connection_that_breaks_off_is_one_line(
    repository: str | None,
    hub: HubStandIn,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the tries of the client
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    name = OWN if repository else "net-0123abcd.pth"
    address = f"{hub.address}/ann/net/resolve/main/{name}"
    hub.files["ann/net"] = {name: file.read_bytes()}
    hub.breaks_off = True
    one = Published(name=NET, address=address, hub=repository)
    problem = f"no connection to {address}" if repository else f"what {address} gave is cut off"
    with pytest.raises(ValueError, match=f"^weights of {NET}: {problem} ") as e:
        one.read(lambda line: None)
    assert str(e.value).isprintable() and "give a file with `weights`" in str(e.value)
    assert any(line.startswith("GET") for line in hub.requests) and one.cached is None


def test_a_download_that_fails_otherwise_is_no_lack_of_connection(
    hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["ann/net"] = {"net-0123abcd.pth": b"other weights"}
    address = f"{hub.address}/ann/net/resolve/main/net-0123abcd.pth"
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    one = Published(name=NET, address=address)
    with pytest.raises(ValueError, match=f"what {address} gave is cut off or damaged .invalid"):
        one.read(lambda line: None)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "file"))
    with pytest.raises(ValueError, match=f"what {address} gives cannot be kept .*Not a directory"):
        one.read(lambda line: None)
    assert [path.name for path in tmp_path.rglob("*.p*")] == []


def test_an_answer_that_the_hub_refuses_with_is_named(hub: HubStandIn, file: Path) -> None:
    hub.files["ann/net"] = {OWN: file.read_bytes()}
    address = f"{hub.address}/ann/net/resolve/main/{OWN}"
    for one, asked in (
        (Published(name=NET, address=address, hub="ann/hidden"), address),
        (Published(name=NET, address=f"{address}x"), f"{address}x"),
    ):
        with pytest.raises(ValueError, match=f"{asked} answered 404; connect, or give a file"):
            one.read(lambda line: None)


def test_timm_names_the_hub() -> None:
    pytest.importorskip("timm")
    found = published("timm:tf_efficientnet_lite0")
    assert found == Published(
        name="timm:tf_efficientnet_lite0",
        address="https://huggingface.co/timm/tf_efficientnet_lite0.in1k/resolve/main/model.safetensors",
        hub="timm/tf_efficientnet_lite0.in1k",
    )


@pytest.mark.parametrize("name", ["small", "torchvision:nonsense", "timm:nonsense", "a.b:c"])
def test_networks_without_published_weights(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no published weights for model {name!r}")):
        published(name)


# --- the commands -------------------------------------------------------------------------------


def test_training_starts_from_the_file_and_says_so(
    file: Path, photos: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    notes: list[str] = []
    out = tmp_path / "run"
    settings: dict[str, Any] = {"epochs": 1, "lr": 1e-9, "device": "cpu"}
    trained = dada.train(photos, model=NET, weights=file, out=out, on_note=notes.append, **settings)
    assert any("new head for 2 classes" in note for note in notes)
    kept = from_file(file, NET)[1].tensors["conv1.0.weight"]
    assert torch.allclose(trained.model.conv1[0].weight, kept, atol=1e-6)
    config = tomllib.loads((out / "config.toml").read_text())
    assert config["weights"]["mean"] == list(MEAN) and config["weights"]["std"] == list(STD)
    assert config["train"]["label_smoothing"] == 0.1 and config["train"]["batch_size"] == 16
    about = json.loads((out / "model.json").read_text())
    assert about["mean"] == list(MEAN) and about["model"] == NET
    # The run is weights, too: it says itself which network they are for.
    name, weights = from_file(out, None)
    assert name == NET and weights.mean_std == (MEAN, STD)


def test_search_and_compare_start_from_the_file(
    file: Path, photos: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All their networks are built with these weights, and see images normalised for them."""
    begun: list[nn.Module] = []
    genuine = models.fit_weights

    def noted(model: nn.Module, *rest: Any) -> str:
        begun.append(model)
        return genuine(model, *rest)

    monkeypatch.setattr(models, "fit_weights", noted)
    settings: dict[str, Any] = {"epochs": 1, "device": "cpu", "on_note": lambda line: None}
    dada.search(photos, model=NET, weights=file, lookahead=0, out=tmp_path / "search", **settings)
    config = tomllib.loads((tmp_path / "search" / "config.toml").read_text())
    assert config["weights"]["mean"] == list(MEAN) and config["search"]["lr"] == 0.01
    searched = len(begun)
    assert searched >= 1
    dada.compare(photos, ["none", "uniform"], seeds=1, model=NET, weights=file, **settings)
    assert len(begun) >= searched + 2


def test_what_contradicts_itself_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="give one"):
        dada.train("digits", model=NET, weights=file, pretrained=True)
    with pytest.raises(ValueError, match="networks by name"):
        dada.train("digits", model=nn.Linear(2, 2), pretrained=True)


def test_the_command_line_gives_one_line(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    no_connection: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", images=np.zeros((8, 32, 32, 3), np.uint8), labels=np.arange(8) % 2)
    cases = [
        (["--weights", str(file)], "give --model too"),
        (["--model", "wrn10_1", "--weights", str(file)], "not those of model 'wrn10_1'"),
        (["--model", NET, "--pretrained"], "give a file with --weights"),
        (["--model", "small", "--pretrained"], "--pretrained: there are no published weights"),
        (
            ["--base", "foto"],
            "--base should be one of photo, photo-mild, flip, turn, turn-mild, cifar, none",
        ),
        (["--base", "photo", "--crop", "4"], "--scale and --crop both cut every image"),
    ]
    for arguments, words in cases:
        line = ["dada", "train", "data.npz", *arguments, "--device", "cpu", "--out", "run"]
        monkeypatch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr().err.strip()
        assert ended.value.code == 2
        assert words in said and "\n" not in said, arguments
        assert not Path("run").exists()
    assert len(no_connection) == 1


def test_a_broken_download_ends_the_command_with_one_line(
    hub: HubStandIn, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("timm")
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    np.savez("data.npz", images=np.zeros((8, 32, 32, 3), np.uint8), labels=np.arange(8) % 2)
    hub.files["timm/tf_efficientnet_lite0.in1k"] = {OWN: bytes(1000)}
    hub.breaks_off = True
    code, _, said = command("train", "data.npz", "--pretrained", "--device", "cpu", "--out", "run")
    last = said.strip().splitlines()[-1]
    assert code == 2 and "Traceback" not in said and not Path("run").exists()
    assert last.startswith("dada: weights of timm:tf_efficientnet_lite0: no connection to http")
    assert last.endswith("connect, or give a file with --weights")


def test_a_damaged_download_that_nobody_asked_for_is_passed_over(
    hub: HubStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch"))
    one = published("torchvision:resnet18")
    place = tmp_path / "torch" / "checkpoints" / Path(one.address).name
    place.parent.mkdir(parents=True)
    place.write_bytes(b"PK half of it")
    images = torch.zeros(12, 3, 72, 72, dtype=torch.uint8)
    data, notes = (images, torch.arange(12) % 2), list[str]()
    asked: dict[str, Any] = {"epochs": 1, "device": "cpu", "on_note": notes.append}
    dada.train(data, **asked)
    assert notes[0].startswith(f"passed over: weights of torchvision:resnet18: {place}: ")
    assert notes[1].startswith("network: small from scratch") and not hub.requests
    with pytest.raises(ValueError, match=rf"{place.name}: .*; delete this file"):
        dada.train(
            (images, torch.arange(12) % 2), model="torchvision:resnet18", pretrained=True, **asked
        )


# --- what does not learn ------------------------------------------------------------------------


@pytest.mark.parametrize("freeze", ["none", "norm", "backbone"])
def test_what_is_frozen_stays(freeze: str, file: Path, photos: tuple[Tensor, Tensor]) -> None:
    trained = dada.train(
        photos,
        model=NET,
        weights=file,
        freeze=freeze,
        epochs=2,
        device="cpu",
        on_note=lambda line: None,
    )
    before, after = from_file(file, NET)[1].tensors, trained.model.state_dict()

    def same(name: str) -> bool:
        return torch.equal(before[name], after[name])

    assert same("conv1.1.running_mean") == (freeze != "none")
    assert same("conv1.0.weight") == same("conv1.1.weight") == (freeze == "backbone")
    assert float(after["fc.bias"].abs().sum()) > 0, "the head learns"


def test_an_unknown_part_cannot_be_frozen(file: Path) -> None:
    with pytest.raises(ValueError, match="`freeze` should be one of none, norm, backbone"):
        dada.train("digits", model=NET, weights=file, freeze="stem")


@pytest.mark.parametrize("model", ["small", None])
def test_nothing_of_an_untrained_network_is_frozen(
    model: str | None, photos: tuple[Tensor, Tensor]
) -> None:
    """Also where the data decides which network it is."""
    for what in ("backbone", "norm"):
        with pytest.raises(ValueError, match=f"`freeze='{what}'`: nothing of an untrained network"):
            dada.train(photos, model=model, freeze=what, epochs=1, device="cpu")
    with pytest.raises(ValueError, match="nothing of an untrained network"):
        dada.compare(photos, ["none", "uniform"], model=model, freeze="backbone", device="cpu")
    dada.train(photos, model=model, freeze="none", epochs=1, device="cpu")


def test_a_network_of_ones_own_is_frozen_by_its_owner(photos: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="`freeze='backbone'` is for networks by name; call"):
        dada.train(photos, model=nn.Linear(2, 2), freeze="backbone")


def test_to_freeze_without_weights_ends_the_command_with_one_line(command: Any) -> None:
    code, _, said = command("search", "digits", "--freeze", "backbone", "--out", "run")
    assert code == 2 and said.startswith("dada: --freeze backbone: nothing of an untrained")
    assert said.count("\n") == 1 and not Path("run").exists()


def test_a_judgement_leaves_frozen_statistics_alone(file: Path) -> None:
    _, weights = from_file(file, NET)
    model = models.build(NET, 5, 3, (SIDE, SIDE), weights=weights)
    models.set_training(model)
    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert model.training and norms and not any(layer.training for layer in norms)
    forward_work(model, (3, SIDE, SIDE))
    assert model.training and not any(layer.training for layer in norms)
