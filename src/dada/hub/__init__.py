"""Policies on the Hugging Face Hub: `policy.push_to_hub(repo)` and `Policy.load("hf:user/name")`.

A repository holds policy.json, a card (README.md) and a picture of what the policy does. What is
loaded is JSON, read by the reader of policy files: nothing of a stranger's is ever run.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dada import __version__, safe_json
from dada.hub.card import PICTURE, write_card
from dada.policy import Policy
from dada.report.contact_sheet import contact_sheet, pictures_for
from dada.runlog import POLICY
from dada.safe_text import LONGEST_MESSAGE, first_line, printable, quoted

PREFIX = "hf:"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")
PICTURES = 10


def push(
    policy: Policy,
    repo: str,
    data: str | None,
    license: str | None,
    private: bool,
    token: str | None,
) -> str:
    """Publish a policy with its card, in one commit: `Policy.push_to_hub`."""
    _check_repository(repo, "`repo`")
    if license is not None and not LICENSE.fullmatch(license):
        raise ValueError(f"`license` should be a name such as 'mit', got {quoted(license)}")
    sheet = io.BytesIO()
    contact_sheet(policy, pictures_for(data, PICTURES), rows=6).save(sheet, "PNG", optimize=True)
    files = {
        POLICY: policy.to_json().encode(),
        "README.md": write_card(policy, repo, license, own_pictures=data is not None).encode(),
        PICTURE: sheet.getvalue(),
    }
    with _errors_of(repo):
        from huggingface_hub import CommitOperationAdd

        api = _api(token)
        address = str(api.create_repo(repo, private=private, exist_ok=True))
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        api.create_commit(repo, added, commit_message="A policy and its card")
    return address


def pull(name: str) -> Policy:
    """The policy of "hf:user/name", or of one of its revisions: "hf:user/name@revision"."""
    repo, _, revision = name.removeprefix(PREFIX).partition("@")
    _check_repository(repo, quoted(name))
    with _errors_of(repo):
        api, place = _api(None), {"revision": revision or None}
        about = api.hf_hub_download(repo, POLICY, dry_run=True, **place)
        if (about.file_size or 0) > safe_json.MOST_BYTES:
            raise ValueError(f"{name}: {POLICY} has {about.file_size / 2**20:,.0f} MB, too many")
        file = about.local_path if about.is_cached else api.hf_hub_download(repo, POLICY, **place)
    try:
        return Policy.load(file)
    except ValueError as error:
        problem = str(error).removeprefix(f"{printable(file)}: ")
        raise ValueError(f"{printable(name)}: {problem}") from None


def _api(token: str | None) -> Any:
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ValueError(
            "policies of the hub need the package huggingface_hub; run: pip install huggingface_hub"
        ) from None
    return HfApi(token=token, library_name="dada-augment", library_version=__version__)


def _check_repository(repo: Any, what: str) -> None:
    if not isinstance(repo, str) or not REPOSITORY.fullmatch(repo):
        raise ValueError(f"{what}: a repository of the hub is user/name, got {quoted(repo)}")


@contextmanager
def _errors_of(repo: str) -> Iterator[None]:
    """Whatever the hub or the way to it raises, as one line that says what to do."""
    try:
        yield
    except (ValueError, ImportError) as error:
        if type(error) is ValueError:
            raise
        _api(None)  # says what to install
        raise ValueError(f"hf:{repo}: {_reason(error)}") from None
    except Exception as error:
        advice = ADVICE.get(
            next((c.__name__ for c in type(error).__mro__ if c.__name__ in ADVICE), "")
        )
        raise ValueError(f"hf:{repo}: {advice or _reason(error)}") from None


# By name, because a class that one version of the library lacks cannot be imported.
ADVICE = {
    "GatedRepoError": "access has to be asked for on its page, then log in: hf auth login",
    "RepositoryNotFoundError": "no such repository, or it is private: hf auth login",
    "RevisionNotFoundError": "no such revision",
    "RemoteEntryNotFoundError": f"it holds no {POLICY}",
    "LocalEntryNotFoundError": "the hub cannot be reached, and nothing of it was kept here",
    "LocalTokenNotFoundError": "log in first: hf auth login",
}


def _reason(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return "this needs a login that may write there: hf auth login"
    said = printable(first_line(error), LONGEST_MESSAGE)
    return f"the hub did not answer as expected ({said})"
