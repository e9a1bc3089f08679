"""Everything that changes during a search, and so everything a checkpoint must hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dada.config import GUMBEL_BRANCHES, SearchConfig
from dada.data import Split
from dada.engine import ALONE, Ranks, channels_last
from dada.policy import Policy
from dada.policy.augment import Normalise
from dada.policy.space import SearchSpace
from dada.policy_search.estimators import Estimator, make_estimator
from dada.policy_search.evidence import Evidence
from dada.policy_search.parameters import MagnitudeDistribution, PolicyParameters
from dada.training.optimisers import SGD, Adam, AdamW
from dada.training.state import RunState


def starting_point(space: SearchSpace, config: SearchConfig) -> PolicyParameters:
    """A policy before anything is known."""
    n, k = space.num_subpolicies, space.ops_per_subpolicy
    distribution = None
    if config.magnitudes == "distribution":
        distribution = MagnitudeDistribution(
            n, k, bins=config.magnitude_bins, op_index_NK=space.op_index_NK
        )
    return PolicyParameters(n, k, magnitude_distribution=distribution)


class SearchState(RunState):
    """The network, the policy, their optimisers, and the random generators.

    `learned` is the policy that comes out, `sampling` the one that draws are made from: the same
    (the paper), or the uniform one, which stays where it is while evidence is gathered.
    """

    config: SearchConfig

    def __init__(
        self,
        model: nn.Module,
        split: Split,
        config: SearchConfig,
        seed: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        super().__init__(split, config, seed, device, ranks)
        self.space = SearchSpace.of(config)
        self.model = channels_last(model.to(device), device)
        self.normalise = Normalise(*split.mean_std())
        self.learned = self.policy_parameters()
        self.previous = self.policy_parameters()  # after the last epoch
        self.estimator: Estimator = make_estimator(
            config.estimator,
            self.space.num_subpolicies,
            config.ops_per_subpolicy,
            temperature=config.temperature,
            views=config.views,
            branches=config.gumbel_branches or GUMBEL_BRANCHES[device.type],
            generator=torch.Generator().manual_seed(seed),
        )
        if config.update == "evidence":
            self.sampling = self.policy_parameters()
            self.evidence: Evidence | None = Evidence(self.space, config.magnitude_bins)
        else:
            self.sampling = self.learned
            self.evidence = None
        self.to(device)
        if ranks.world > 1:  # a network of the user's own may have begun differently elsewhere
            self.model.load_state_dict(ranks.same(self.model.state_dict()))
        self.weight_optimizer = SGD(
            self.model.parameters(), momentum=config.momentum, weight_decay=config.weight_decay
        )
        self.policy_optimizer = Adam(
            [*self.learned.parameters(), *self.estimator.parameters()],
            lr=config.policy_lr,
            betas=config.policy_betas,
        )

    @property
    def optimizers(self) -> dict[str, SGD | Adam | AdamW]:
        return {
            "weight_optimizer": self.weight_optimizer,
            "policy_optimizer": self.policy_optimizer,
        }

    def seen(self, images_BCHW: Tensor) -> Tensor:
        """The images as the network sees them."""
        views: Tensor = channels_last(self.normalise(images_BCHW), self.device)
        return views

    def mine(self, rows_VB: Tensor) -> Tensor:
        """Rows of everyone's views to those of this process's: views outside, images inside."""
        return self.ranks.mine(rows_VB.unflatten(0, (self.config.views, -1)), 1).flatten(0, 1)

    def gather(self, mine_VB: Tensor) -> Tensor:
        """The way back: the same rows of every process together."""
        by_view = mine_VB.unflatten(0, (self.config.views, -1))
        return self.ranks.gather(by_view, 1).flatten(0, 1)

    @property
    def reads_pixels(self) -> bool:
        """Whether the cost's gradient by pixel is asked for."""
        by_magnitude = self.config.magnitudes in ("straight_through", "pathwise")
        return self.estimator.needs_pixel_effects or by_magnitude

    def policy_parameters(self) -> PolicyParameters:
        return starting_point(self.space, self.config)

    def policy(self, provenance: dict[str, Any]) -> Policy:
        top = self.config.top if self.evidence is None else None
        return self.learned.to_policy(self.space, top=top, provenance=provenance)
