"""Event streams: spoken digits and words as spikes, gestures and digits before an event camera."""

from longscan.tasks.events.task import Events as Events
