"""What all tests share. Shapes: B images, C channels, H height, W width."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dada.config import LOOKAHEAD
from dada.data import Split
from dada.policy_search import lookahead
from dada.policy_search.lookahead.scoring import ArmLosses
from dada.policy_search.lookahead.signal import Signal, signal_of
from dada.terminal.commands import main
from hub_stand_in import TOKEN, HubStandIn, hub_stand_in
from quick import QUICK_LOOKAHEAD

# One thread: sums are then taken in one order, so results repeat to the last bit, and at the sizes
# of these tests a second thread costs more in hand-over than it computes.
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="device of the `device` fixture (cpu, cuda)")


def pytest_configure(config: pytest.Config) -> None:
    name = config.getoption("--device")
    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        problem = str(error).splitlines()[0]
        raise pytest.UsageError(f"--device {name} cannot be used here: {problem}") from None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture
def quick_lookahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """For commands, pages and examples that leave looking ahead at its default: small settings."""
    monkeypatch.setitem(LOOKAHEAD, "cpu", QUICK_LOOKAHEAD)


@pytest.fixture
def signal_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """For searches whose trainings are too short to learn anything: they go on as if they had."""

    def weak(losses: ArmLosses, judged_on: Sequence[Split], looks: int = 1) -> Signal:
        return replace(signal_of(losses, judged_on, looks), word="weak", learned=True)

    monkeypatch.setattr(lookahead, "signal_of", weak)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubStandIn]:
    """What the hub's client asks in place of the hub, with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    # The client writes to what stderr was when it was imported: that of a test that is over.
    for handler in logging.getLogger("huggingface_hub").handlers:
        monkeypatch.setattr(handler, "stream", sys.stderr, raising=False)
    with hub_stand_in() as made:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, made.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", made.address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield made


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of torch's threads, which is one again afterwards."""
    yield torch.set_num_threads
    torch.set_num_threads(1)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where the test runs: `pytest --device cuda`."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture
def generator(device: torch.device) -> torch.Generator:
    """A freshly seeded generator on that device."""
    return torch.Generator(device).manual_seed(0)


@pytest.fixture
def images_BCHW(device: torch.device) -> torch.Tensor:
    """Six RGB images, 11 x 9 so that a mixed-up height and width shows; the same on every device.

    Noise on a ramp: histograms are uneven, so AutoContrast and Equalize have something to do.
    """
    noise = torch.Generator().manual_seed(1)
    ramp_W = torch.linspace(30, 190, 9)
    images = ramp_W + 60 * torch.rand(6, 3, 11, 9, generator=noise) - 30
    return images.clamp(0, 255).to(torch.uint8).to(device)


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs `dada ARGUMENTS` in an empty directory: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dada", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as exit_:
            code = exit_.code or 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
