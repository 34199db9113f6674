"""Strategies for random histories: settings, clients' requests, workers' claims."""

from __future__ import annotations

from hypothesis import strategies as st

from service.jobs.model.job import PRIORITIES
from service.settings.tenants import TenantSettings
from tests.service.jobs.order_model import Offer

MODELS, BUCKETS, TENANTS = ("m", "m:m"), ("a", "b:a"), ("t", "t:t", "u")
"""Names that collide if keys are split at their colons."""
POOLS = ("pool-a", "pool-b")
"""Registered workers of a model, if any; others may claim, too."""
STEPS = 4
COSTS = (0.5, 1.0, 4.0)
WEIGHTS = (0.5, 1.0, 2.0)
"""Powers of two: Redis and Python print every tag alike."""
UNENDED = 14
"""Maximum number of jobs at a time: fewer than a claim examines."""
LAPSED_S, LONG_S = 1e-6, 3600
"""A lease that lapses before the next call, and one that outlasts the test."""
SOON_S = 0.03
"""Time for some calls before a deadline passes; their number does not matter."""
FAR_S = 1000
DEADLINES = {
    "none": (None, None),
    "far": (FAR_S, 1),
    "long": (FAR_S, 300),
    "unknown": (FAR_S, None),
    "soon": (SOON_S, None),
    "hopeless": (FAR_S, 2 * FAR_S),
    "past": (-1, None),
}
"""Seconds until the deadline, and the job's run time on the fastest worker."""
SLOWNESS = (1.0, 2.0, 8.0)
"""Slowness factors of workers; the last is too slow for the long jobs."""
SETTINGS = st.fixed_dictionaries(
    {
        "priority_s": st.sampled_from([0, 600]),
        "priority_advance_s": st.sampled_from([0, 2, 32]),
        "deadline_credit_s": st.sampled_from([1, 0, 300]),
        "max_attempts": st.sampled_from([4, 3, 4, 2, 3, 1]),
        "max_deaths": st.sampled_from([3, 4, 2, 4, 3, 1]),
        "max_events": st.sampled_from([2, 256]),
        "max_queued": st.sampled_from([7, 100]),
    }
)
LIMITS = st.fixed_dictionaries(
    {
        name: st.builds(
            TenantSettings,
            weight=st.sampled_from(WEIGHTS),
            max_queued=st.sampled_from([None, None, 3]),
            device_seconds_per_hour=st.sampled_from([None, 10]),
            stored_bytes=st.sampled_from([None, None, 3000]),
        )
        for name in TENANTS
    }
)
JOB_FIELDS = st.fixed_dictionaries(
    {
        "bucket": st.sampled_from(BUCKETS),
        "second": st.sampled_from([None] * 4 + list(BUCKETS)),
        "tenant": st.sampled_from(TENANTS),
        "priority": st.sampled_from(list(PRIORITIES.values())),
        "images": st.sampled_from([1, 1, 1, 2, 3]),
        "cost": st.sampled_from(COSTS),
        "deadline": st.sampled_from(["none"] * 9 + ["soon", "far"] * 3 + list(DEADLINES)),
        "key": st.sampled_from([None] * 5 + ["k"]),
        "digest": st.sampled_from("de"),
        "is_audition": st.sampled_from([False] * 3 + [True]),
        "is_reused": st.sampled_from([False] * 19 + [True]),
        "drafts": st.sampled_from([[]] * 5 + [[1], [2, 1]]),
        "input_bytes": st.sampled_from([0, 0, 1000]),
        "is_refused": st.sampled_from([False] * 15 + [True]),
        "avoid": st.sampled_from([None] * 3 + [*POOLS]),
    }
)
"""Strategy for the fields of a client's request."""
INDEX = st.integers(0, 999)
"""Number that selects an existing item."""
OFFERS = st.lists(
    st.tuples(
        INDEX,
        st.builds(
            Offer,
            slots=st.sampled_from([4, 1, 2, 3]),
            warm=st.lists(st.sampled_from(BUCKETS), max_size=2, unique=True),
            slowness=st.sampled_from(SLOWNESS),
            is_patient=st.booleans(),
            may_compile=st.sampled_from([None, None, True, False]),
            pool=st.sampled_from(["", *POOLS]),
        ),
    ),
    min_size=1,
    max_size=2,
)
"""Claims of workers, each with the number of a model."""
IS_REPEATED = st.sampled_from([False] * 4 + [True])
"""Whether the script is sent a second time."""
