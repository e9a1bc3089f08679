"""Old names work, say what they are called now, and are the same things, not copies."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dada
from dada import renamed
from dada.policy import space

SOURCE = Path(__file__).parents[1] / "src"


@pytest.fixture(autouse=True)
def none_imported_yet():
    """Old modules are forgotten before and after, as if each test had a process of its own."""

    def forget() -> None:
        for name in [name for name in sys.modules if renamed._new_module(name) is not None]:
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            vars(sys.modules.get(parent, dada)).pop(child, None)

    forget()
    yield
    forget()


@pytest.mark.parametrize(("old", "new"), renamed.MODULES.items())
def test_an_old_module_is_found_and_says_where_it_is_now(old, new):
    with pytest.warns(DeprecationWarning, match=rf"^{old} is now {new}; the old name goes") as said:
        found = importlib.import_module(old)
    assert said[0].filename == __file__
    target = importlib.import_module(new)
    public = [name for name in vars(target) if not name.startswith("_")]
    assert public and all(getattr(found, name) is getattr(target, name) for name in public)
    importlib.import_module(old)  # a second warning would be an error here


@pytest.mark.parametrize(("old", "new"), renamed.NAMES.items())
def test_an_old_name_is_found_wherever_it_went(old, new):
    module, _, name = old.rpartition(".")
    place, _, new_name = new.rpartition(".")
    with pytest.warns(DeprecationWarning, match=rf"^{module} is now "):
        old_module = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"^{old} is now {new};"):
        found = getattr(old_module, name)
    assert found is getattr(importlib.import_module(place), new_name)


def test_what_a_person_writes_works():
    with pytest.warns(DeprecationWarning, match=r"dada\.space is now dada\.policy\.space"):
        from dada.space import register
    assert register is space.register
    with pytest.warns(DeprecationWarning, match=r"dada\.baselines is now") as said:
        assert dada.baselines.__name__ == "dada.baselines"  # an attribute, without an import
    assert said[0].filename == __file__
    names: dict[str, object] = {}
    with pytest.warns(DeprecationWarning, match=r"dada\.scores is now"):
        exec("from dada.scores import *", names)
    assert names["Scores"] is importlib.import_module("dada.training.scores").Scores


def test_what_lies_in_an_old_package_is_not_loaded_twice():
    with pytest.warns(DeprecationWarning, match=r"dada\.export is now dada\.exchange\.exports"):
        importlib.import_module("dada.export")
    with pytest.warns(DeprecationWarning, match=r"dada\.export\.albumentations is now dada"):
        old = importlib.import_module("dada.export.albumentations")
    new = importlib.import_module("dada.exchange.exports.albumentations")
    assert {name: getattr(old, name) for name in old.__all__} == {
        name: getattr(new, name) for name in old.__all__
    }
    assert new.__spec__.name == new.__name__ == "dada.exchange.exports.albumentations"


def test_an_old_module_is_never_taken_for_the_new_one():
    with pytest.warns(DeprecationWarning):
        old = importlib.import_module("dada.space")
    assert inspect.getmodule(space.register) is space
    assert not hasattr(old, "__file__") and not hasattr(old, "no_such_name")


def test_other_names_stay_unknown():
    for name in ("dada.nothing", "dada.spaces", "dada.policy.nothing", "dadaism"):
        with pytest.raises(ModuleNotFoundError, match=re.escape(name)):
            importlib.import_module(name)
    assert not hasattr(dada, "nothing")


def test_the_second_set_of_images_is_val_data():
    images, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    new = dada.data.load((images, labels), val_data=(images[:2], labels[:2]))
    with pytest.warns(DeprecationWarning, match=r"^val_source is now val_data;") as said:
        old = dada.data.load((images, labels), val_source=(images[:2], labels[:2]))
    assert len(old.val) == len(new.val) == 2 and said[0].filename == __file__


def test_old_flags_are_replaced_and_said(monkeypatch):
    monkeypatch.setitem(renamed.FLAGS, "import", {"--drop": "--exclude"})
    said: list[str] = []
    given = ["import", "x", "--drop", "A", "--drop=B", "--dropped"]
    assert renamed.new_flags(given, said.append) == [
        *("import", "x", "--exclude", "A", "--exclude=B", "--dropped")
    ]
    assert said == ["--drop is now --exclude; the old name goes in the next release"] * 2
    assert renamed.new_flags(["search", "--drop", "A"], pytest.fail) == ["search", "--drop", "A"]


def test_the_finder_is_installed_once():
    renamed.install()
    finders = [f for f in sys.meta_path if type(f).__name__ == "_OldModules"]
    assert len(finders) == 1


def test_what_was_pickled_under_an_old_name_can_be_read():
    new = pickle.dumps(space.SearchSpace, protocol=0)
    assert b"dada.policy.space" in new
    with pytest.warns(DeprecationWarning, match=r"dada\.space is now"):
        assert pickle.loads(new.replace(b"dada.policy.space", b"dada.space")) is space.SearchSpace


WORKERS = """
import sys
import warnings

if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dada.transform import PolicyTransform
    from dada.policy import Policy
    from torch.utils.data import DataLoader
    from torchvision.datasets import FakeData

    transform = PolicyTransform(Policy.load("dada-cifar10"), seed=0)
    assert "dada.transform" in sys.modules
    data = FakeData(size=4, image_size=(3, 8, 8), transform=transform)
    loader = DataLoader(data, collate_fn=list, num_workers=1, multiprocessing_context="spawn")
    print([image.size for ((image, _),) in loader])
"""


def test_workers_do_not_trip_over_old_modules(tmp_path):
    """Objects made by way of an old name travel under the new one: nothing warns in a worker."""
    (tmp_path / "script.py").write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, f"{[(8, 8)] * 4}\n"), done.stderr
