"""What random histories are made of: settings, clients' wishes, pools' offers."""

from __future__ import annotations

from hypothesis import strategies as st

from service.jobs.model.job import PRIORITIES
from service.settings.tenants import TenantSettings
from tests.service.jobs.order_model import Offer

MODELS, BUCKETS, TENANTS = ("m", "m:m"), ("a", "b:a"), ("t", "t:t", "u")
"""Names that run into each other if one takes keys apart at their colons."""
STEPS = 4
COSTS = (0.5, 1.0, 4.0)
WEIGHTS = (0.5, 1.0, 2.0)
"""Powers of two: every tag is a number that Redis and Python write down alike."""
UNENDED = 14
"""Jobs at the same time: fewer than a claim looks at."""
LAPSED_S, LONG_S = 1e-6, 3600
"""What is over by the next call, and what is not however long a busy machine takes."""
SOON_S = 0.03
"""Time for some calls before a deadline passes; how many they are is all one."""
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
"""Seconds until the deadline, and what the job takes of them on the fastest pool."""
SLOWNESS = (1.0, 2.0, 8.0)
"""The last one is too slow for the long ones."""
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
WISHES = st.fixed_dictionaries(
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
    }
)
"""Of a client."""
WHICH = st.integers(0, 999)
"""Of what there is."""
OFFERS = st.lists(
    st.tuples(
        WHICH,
        st.builds(
            Offer,
            slots=st.sampled_from([4, 1, 2, 3]),
            warm=st.lists(st.sampled_from(BUCKETS), max_size=2, unique=True),
            slowness=st.sampled_from(SLOWNESS),
            is_patient=st.booleans(),
            may_compile=st.sampled_from([None, None, True, False]),
        ),
    ),
    min_size=1,
    max_size=2,
)
"""Of pools, with the number of a model."""
TWICE = st.sampled_from([False] * 4 + [True])
"""Whether the script is sent a second time."""
