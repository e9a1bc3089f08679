"""What there is time for: which runs of which arms, in which round, with whose images."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from dada import tasks
from dada.policy import Policy
from dada.policy.space import SearchSpace
from dada.policy_search.free_policies import free_policies
from dada.policy_search.job import SearchJob
from dada.policy_search.lookahead.arms import ArmRuns
from dada.policy_search.lookahead.base_choice import FILE, BaseQuestion, bases_for
from dada.policy_search.lookahead.features import FeatureRuns
from dada.policy_search.lookahead.runs import BranchedRuns
from dada.policy_search.lookahead.shapes import (
    FINE_TUNING_SHAPES,
    SHAPES,
    SHAPES_OF_PLACES,
    Shape,
    few_shapes_for,
    shapes_for,
    usual_of,
)
from dada.policy_search.lookahead.stand_in import StandIn

OPERATIONS, POLICIES = "lookahead.json", "lookahead-policies.json"  # in a run directory
FEWEST_IMAGES = 50  # of a half: with fewer the ends of trainings differ by chance alone
# What short trainings chose was judged in trainings of up to so many images seen, and was better
# than every free policy there (docs/search-study.md: CIFAR-10, 4,000 images, 80 epochs).
JUDGED = 320_000
LONGER_ROUND = 2.0  # times its seconds, where the trainings of the second round are longer

Runs = BranchedRuns | FeatureRuns


@dataclass(frozen=True, kw_only=True)
class LookaheadPlan:
    own: BranchedRuns  # with the user's own images and network
    # The first round: every operation alone.
    operations: dict[str, Policy]
    runs: Runs
    first: int  # how many runs
    again: int  # how many more where they show nothing
    # Between the rounds: whether to mirror, turn and cut every image, if nobody said.
    base: BaseQuestion
    # The second round: whole policies.
    shapes: tuple[Shape, ...]
    usual: Shape  # the one to take without this round
    free: dict[str, Policy]  # those without a search that take part
    free_first: bool  # before the shapes; what is first of all is left only for a clear gain
    whole: Runs
    second: int
    facts: dict[str, Any]  # for a policy file: what looked ahead

    @property
    def total(self) -> int:
        """Runs of all, but for those that are made again."""
        return self.first + self.base.count + self.second

    @property
    def seconds_left(self) -> float:
        """Of a nominal machine, for the runs that are not on disk."""
        whole = (*self.free, *(shape.name for shape in self.shapes))
        rounds: list[tuple[ArmRuns, Collection[str], int, str]] = [
            (self.runs, self.operations, self.first, OPERATIONS),
            (self.base.runs, self.base.bases, self.base.count, FILE),
            (self.whole, whole, self.second, POLICIES),
        ]
        left = ((runs, len(arms), runs.left(arms, count, f)) for runs, arms, count, f in rounds)
        return sum(count * runs.run_seconds(arms) for runs, arms, count in left if count)


def plan_for(job: SearchJob) -> LookaheadPlan | None:
    """None where there is no time to look ahead at all."""
    settings, operations = job.lookahead, single_operations(job.space)
    features, first_seconds = FeatureRuns.of(job), settings.first_round * settings.seconds
    runs: Runs
    facts: dict[str, Any] = {}
    if features is None:
        own, first = _affordable_runs(job, len(operations), first_seconds)
        runs = own
    else:
        own, runs, facts = BranchedRuns.of(job), features, {"features": True}
        first = features.affordable(len(operations), first_seconds)
    left = (1 - settings.first_round) * settings.seconds
    moves = tasks.named(job.split.task).moves
    whole: Runs = features or own
    if not first:
        # A stand-in knows which operations help. How much of them is enough is another matter for
        # larger images and networks (docs/search-study.md), so there is no second round; but for
        # masks and boxes, where the question is whether to use any (docs/detection.md), if there is
        # time to ask.
        small = StandIn.of(job.split, job.config.base, settings, job.device, seed=job.seed)
        if moves:
            whole, first = _affordable_runs(job, len(operations), first_seconds, small)
        if not first:
            whole, first = _affordable_runs(job, len(operations), settings.seconds, small)
            left = 0.0
        runs, facts = whole, {"stand_in": small.facts}
    if not first:
        if moves:
            raise ValueError(
                f"{job.split.task} is searched by looking ahead alone, and {settings.seconds:g} "
                "seconds are too few for that; raise `lookahead`"
            )
        return None
    base = BaseQuestion(runs=runs)
    if job.choose_base:
        share = settings.base_share * first * runs.run_seconds(len(operations))
        bases = bases_for(moves=moves, pretrained=job.pretrained, channels=job.split.channels)
        base = BaseQuestion.of(runs, share, small="stand_in" in facts, all_bases=bases)
    shapes, usual, free = _candidates(job)
    arms = len(shapes) + len(free)
    times = _times_as_long(job, own, arms, LONGER_ROUND * left) if whole is own else 1
    if times > 1:
        whole, left = own.lengthened(times), LONGER_ROUND * left
    second = min(whole.affordable(arms, left), settings.most_policy_runs)
    if job.length is not None and (times > 1 or job.length.asked):
        wanted = {"for_epochs": job.length.epochs, "for_images": job.length.images}
        facts |= {"times_as_long": times, **wanted}
    return LookaheadPlan(
        own=own,
        operations=operations,
        runs=runs,
        first=first,
        again=min(first, settings.most_runs - first) if settings.look_again and second else 0,
        base=base,
        shapes=shapes,
        usual=usual,
        free=free,
        free_first=moves,
        whole=whole,
        second=second,
        facts=facts,
    )


def _affordable_runs(
    job: SearchJob, arms: int, seconds: float, stand_in: StandIn | None = None
) -> tuple[BranchedRuns, int]:
    """Runs of so many arms, and how many of them these seconds have room for.

    A task whose targets move has small batches: many images are many steps. As looking ahead alone
    searches for it, there it takes as many images as there is time for.
    """
    runs = BranchedRuns.of(job, stand_in)
    images = len(runs.read_on.train)
    while not (count := runs.affordable(arms, seconds)):
        if not tasks.named(job.split.task).moves or images <= FEWEST_IMAGES:
            break
        images = max(FEWEST_IMAGES, images // 2)
        runs = BranchedRuns.of(job, stand_in, most_images=images)
    return runs, count


def _times_as_long(job: SearchJob, own: BranchedRuns, arms: int, seconds: float) -> int:
    """How many times as long the trainings of the second round are as those of the first: as long
    as the one that the policy is for, or as there is time for. Longer ones want more augmentation.

    For who said nothing, not longer where `dada train` is less than twice what was judged.
    """
    if job.length is None or (not job.length.asked and job.length.images_seen < 2 * JUDGED):
        return 1
    times = job.length.images_seen // own.images_seen
    times = min(times, int(seconds / (2 * own.run_seconds(arms))))  # runs come in pairs
    while times > 1 and not own.lengthened(times).affordable(arms, seconds):
        times -= 1  # epochs are whole numbers: some runs are a little longer than so many times
    return max(1, times)


def _candidates(job: SearchJob) -> tuple[tuple[Shape, ...], Shape, dict[str, Policy]]:
    """The shapes of the second round, the one to take without that round, and the free policies
    that take part in it."""
    wanted, names = SHAPES, set[str]()
    learned = job.config.magnitudes == "distribution"
    if job.lookahead.few_shapes:
        few = few_shapes_for(job.space, learned=learned)
        return few, few[-1], {}
    if tasks.named(job.split.task).moves:
        wanted, names = SHAPES_OF_PLACES, {"none"}
    elif job.pretrained:
        wanted, names = FINE_TUNING_SHAPES, {"trivialaugment", "none"}
    # "trivialaugment without Color" is one of them, too.
    free = {
        name: policy
        for name, policy in free_policies(job.space).items()
        if name.partition(" ")[0] in names
    }
    shapes = shapes_for(job.space, learned=learned, wanted=wanted)
    return shapes, usual_of(shapes), free


def single_operations(space: SearchSpace) -> dict[str, Policy]:
    """The arms of the first round: every operation alone, at any magnitude, half of the time."""
    return {
        op.name: Policy.from_rows([[(op.name, 0.5, (0.0, 1.0))]], space.name, name=op.name)
        for op in space.ops
    }


def with_fewer_steps(job: SearchJob) -> SearchJob:
    """Fewer steps in the first phase where the second has more to say.

    None where features of a pretrained network are read, however long: what there is time for is a
    few dozen, which know nothing and took half of a search (docs/fine-tuning-study.md). Half of
    them where a stand-in will look ahead: a step with images or a network of that size takes long.
    Else as the settings of looking ahead say, unless a user asked for some seconds of it. Not where
    a user asked for a number of epochs.
    """
    config, settings = job.config, job.lookahead
    if config.epochs is not None or config.preset == "paper" or not settings.seconds:
        return job
    arms, share = len(job.space.ops), settings.first_round * settings.seconds
    features = FeatureRuns.of(job)
    if features is not None and features.affordable(arms, share):
        return replace(job, by_steps=False)
    if config.lookahead is not None:
        return job
    own = BranchedRuns.of(job).affordable(arms, share)
    steps = int(config.least_steps * (settings.steps_before if own else 0.5))
    return replace(job, config=replace(config, least_steps=steps))
